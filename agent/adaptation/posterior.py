"""The fit of models of the costs to measured steps, and how probable each model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.adaptation.corrections import Corrections
from envs.problem import Problem
from graphs.system.array_types import FloatArray, IntArray

NOISE, MODEL_ERROR = 0.02, 0.04
"""Standard deviations of the logarithm of a measured step: of the measurement, and of what no correction
explains."""
REACH = 0.1
"""Share of the work of a step whose move to other devices makes the errors of two placements differ."""
FREEDOM = 4.0
"""Degrees of freedom of the prior of a factor, Student's t: a few factors may be far off."""
CHANGE = 0.02
"""Change of a logarithm for a numerical derivative."""
ITERATIONS, LEAST_GAIN, SHORTENINGS = 4, 0.1, 4
UNLIKELY = 7.0
"""Difference of log evidence by which a model is dropped."""


@dataclass(frozen=True, eq=False)
class Fit:
    """The corrections of one model of the costs after some measurements.

    Attributes:
        mean: most probable logarithms of the factors, (n_factors,).
        root: a matrix R with R R' the covariance around them, (n_factors, n_factors).
        log_evidence: logarithm of the probability of the measurements, but for a constant.
    """

    corrections: Corrections
    mean: FloatArray
    root: FloatArray
    log_evidence: float


Costs = tuple[Corrections, FloatArray]
"""Corrections, and the logarithms of their factors."""


@dataclass(frozen=True, eq=False)
class Posterior:
    """Models of the costs after some measurements, and the measurements themselves.

    Attributes:
        measured: placements, (n, n_ops).
        log_s: logarithms of their measured seconds, (n,).
        fits: of each model of the costs.
    """

    measured: IntArray
    log_s: FloatArray
    fits: Sequence[Fit]

    @property
    def likely(self) -> Costs:
        """The most probable costs."""
        fit = max(self.fits, key=lambda each: each.log_evidence)
        return fit.corrections, fit.mean

    def updated(self, device_of: IntArray, seconds: float) -> Posterior:
        """Fits the models that are not improbable to one more measured step."""
        measured, log_s = np.vstack([self.measured, device_of]), np.append(self.log_s, np.log(seconds))
        least = max(each.log_evidence for each in self.fits) - UNLIKELY
        kept = [each for each in self.fits if each.log_evidence >= least]
        return Posterior(measured, log_s, [fit(each, measured, log_s) for each in kept])

    def draw(self, rng: np.random.Generator) -> Costs:
        """Draws a model by its probability, and its factors."""
        evidence = np.array([each.log_evidence for each in self.fits])
        weights = np.exp(evidence - evidence.max())
        fit = self.fits[rng.choice(len(weights), p=weights / weights.sum())]
        return fit.corrections, fit.mean + fit.root @ rng.standard_normal(len(fit.mean))

    def predict(self, costs: Costs, devices_of: IntArray) -> tuple[FloatArray, FloatArray]:
        """Predicts the logarithms of step times from costs, and from their errors on similar placements.

        Returns:
            Means and standard deviations without the noise of a measurement, (n,) each.
        """
        corrections, logs = costs
        both = np.concatenate([devices_of, self.measured])
        log_s, n = corrections.log_steps(logs, both), len(devices_of)
        errors = _errors(corrections.problem, both, self.measured)
        weights = np.linalg.solve(_with_noise(errors[n:]), errors[:n].T).T
        variance = MODEL_ERROR**2 - (weights * errors[:n]).sum(axis=1)
        return log_s[:n] + weights @ (self.log_s - log_s[n:]), np.sqrt(np.maximum(variance, 0.0))


def prior(models: Sequence[Corrections]) -> Posterior:
    """Returns the models of one problem as they are before any step is measured."""
    fits = [Fit(each, np.zeros(len(each.spreads)), np.diag(each.spreads), 0.0) for each in models]
    return Posterior(np.zeros((0, models[0].problem.graph.n_ops), dtype=np.int64), np.zeros(0), fits)


def fit(before: Fit, measured: IntArray, log_s: FloatArray) -> Fit:
    """Fits factors to measured steps by Gauss-Newton, and their covariance by Laplace's approximation.

    Args:
        before: where the fit begins.
        measured, log_s: as `Posterior` has them.
    """
    corrections = before.corrections
    spreads = corrections.spreads
    covariance = _with_noise(_errors(corrections.problem, measured, measured))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))

    def residuals(x: FloatArray) -> FloatArray:
        found: FloatArray = whiten @ (log_s - corrections.log_steps(x * spreads, measured))
        return found

    x = before.mean / spreads
    rest = residuals(x)
    cost = float(rest @ rest) + _unlikeliness(x)
    for _ in range(ITERATIONS):
        moved = np.stack([residuals(row) for row in x + np.diag(CHANGE / spreads)], axis=1)
        slopes = (moved - rest[:, None]) / (CHANGE / spreads)
        weights = (FREEDOM + 1) / (FREEDOM + x**2)
        curvature = slopes.T @ slopes + np.diag(weights)
        step, last_cost = -np.linalg.solve(curvature, slopes.T @ rest + weights * x), cost
        for shortening in range(SHORTENINGS):
            tried = x + step / 2**shortening
            tried_rest = residuals(tried)
            tried_cost = float(tried_rest @ tried_rest) + _unlikeliness(tried)
            if tried_cost < cost:
                x, rest, cost = tried, tried_rest, tried_cost
                break
        if last_cost - cost < LEAST_GAIN:
            break
    lower = np.linalg.cholesky(curvature)
    log_evidence = -0.5 * cost - float(np.log(np.diag(lower)).sum())
    return Fit(corrections, x * spreads, np.linalg.inv(lower).T * spreads[:, None], log_evidence)


def _unlikeliness(x: FloatArray) -> float:
    """Returns twice the negative logarithm of the prior of standardised logarithms, but for a constant."""
    return (FREEDOM + 1) * float(np.log1p(x**2 / FREEDOM).sum())


def _errors(problem: Problem, devices_of: IntArray, others: IntArray) -> FloatArray:
    """Covariance of what no correction explains: less for placements with much work on other devices."""
    work_s = problem.op_seconds.mean(axis=1)
    apart = (devices_of[:, None] != others) @ (work_s / work_s.sum())
    found: FloatArray = MODEL_ERROR**2 * np.exp(-apart / REACH)
    return found


def _with_noise(covariance: FloatArray) -> FloatArray:
    return covariance + NOISE**2 * np.eye(len(covariance))
