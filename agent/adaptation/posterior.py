"""The fit of models of the costs to measured steps, and how probable each model is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from agent.adaptation.corrections import Corrections, likeness
from graphs.system.array_types import FloatArray, IntArray

NOISE, MODEL_ERROR = 0.02, 0.04
"""Standard deviations of the logarithm of a measured step: of the measurement, and of what no correction
explains."""
FREEDOM = 4.0
"""Degrees of freedom of the prior, Student's t: a few factors may be far off."""
CHANGE = 0.02
"""Change of a logarithm for a numerical derivative."""
ITERATIONS, LEAST_GAIN, SHORTENINGS = 8, 1e-3, 4


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
        alike = MODEL_ERROR**2 * likeness(corrections.problem, both, self.measured)
        weights = np.linalg.solve(_with_noise(alike[n:]), alike[:n].T).T
        variance = MODEL_ERROR**2 - (weights * alike[:n]).sum(axis=1)
        return log_s[:n] + weights @ (self.log_s - log_s[n:]), np.sqrt(np.maximum(variance, 0.0))


def fit(corrections: Corrections, measured: IntArray, log_s: FloatArray, start: FloatArray) -> Fit:
    """Fits factors to measured steps by Gauss-Newton, and their covariance by Laplace's approximation.

    Args:
        measured, log_s: as `Posterior` has them.
        start: logarithms of the factors to begin with, (n_factors,).
    """
    spreads, problem = corrections.spreads, corrections.problem
    covariance = _with_noise(MODEL_ERROR**2 * likeness(problem, measured, measured))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))

    def residuals(x: FloatArray) -> FloatArray:
        found: FloatArray = whiten @ (log_s - corrections.log_steps(x * spreads, measured))
        return found

    x = start / spreads
    rest, gain = residuals(x), np.inf
    for _ in range(ITERATIONS):
        moved = np.stack([residuals(row) for row in x + np.diag(CHANGE / spreads)], axis=1)
        slopes = (moved - rest[:, None]) / (CHANGE / spreads)
        weights = (FREEDOM + 1) / (FREEDOM + x**2)
        curvature = slopes.T @ slopes + np.diag(weights)
        if gain < LEAST_GAIN:
            break
        step = -np.linalg.solve(curvature, slopes.T @ rest + weights * x)
        cost = float(rest @ rest) + _unlikeliness(x)
        for shortening in range(SHORTENINGS):
            tried = x + step / 2**shortening
            tried_rest = residuals(tried)
            gain = cost - float(tried_rest @ tried_rest) - _unlikeliness(tried)
            if gain > 0:
                x, rest = tried, tried_rest
                break
    lower = np.linalg.cholesky(curvature)
    log_evidence = -0.5 * float(rest @ rest + _unlikeliness(x)) - float(np.log(np.diag(lower)).sum())
    return Fit(corrections, x * spreads, np.linalg.inv(lower).T * spreads[:, None], log_evidence)


def _unlikeliness(x: FloatArray) -> float:
    """Returns twice the negative logarithm of the prior of standardised logarithms, but for a constant."""
    return (FREEDOM + 1) * float(np.log1p(x**2 / FREEDOM).sum())


def _with_noise(covariance: FloatArray) -> FloatArray:
    return covariance + NOISE**2 * np.eye(len(covariance))
