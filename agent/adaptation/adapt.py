"""Searches with few measurements: each corrects the costs of the simulator, and so what is measured next."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm

from agent.adaptation.corrections import Corrections
from agent.placers.base import Budget, SearchState
from agent.placers.search.refine import refine
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
        fits: fits of all models of the costs.
    """

    measured: IntArray
    log_s: FloatArray
    fits: Sequence[Fit]

    @property
    def likely(self) -> Costs:
        """The most probable costs."""
        fit = max(self.fits, key=lambda fit: fit.log_evidence)
        return fit.corrections, fit.mean

    def updated(self, device_of: IntArray, seconds: float) -> Posterior:
        """Fits the models that are not improbable to one more measured step."""
        measured, log_s = np.vstack([self.measured, device_of]), np.append(self.log_s, np.log(seconds))
        least = max(before.log_evidence for before in self.fits) - UNLIKELY
        probable = [before for before in self.fits if before.log_evidence >= least]
        return Posterior(measured, log_s, [fit(before, measured, log_s) for before in probable])

    def draw(self, rng: np.random.Generator) -> Costs:
        """Draws a model by its probability, and its factors."""
        evidence = np.array([fit.log_evidence for fit in self.fits])
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
    fits = [Fit(model, np.zeros(len(model.spreads)), np.diag(model.spreads), 0.0) for model in models]
    return Posterior(np.zeros((0, models[0].problem.graph.n_ops), dtype=np.int64), np.zeros(0), fits)


def fit(before: Fit, measured: IntArray, log_s: FloatArray) -> Fit:
    """Fits factors to measured steps by Gauss-Newton, and their covariance by Laplace's approximation.

    Args:
        before: fit to begin with.
        measured, log_s: see `Posterior`.
    """
    corrections = before.corrections
    spreads = corrections.spreads
    covariance = _with_noise(_errors(corrections.problem, measured, measured))
    whiten = np.linalg.inv(np.linalg.cholesky(covariance))

    def residuals(x: FloatArray) -> FloatArray:
        return whiten @ (log_s - corrections.log_steps(x * spreads, measured))

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
    return MODEL_ERROR**2 * np.exp(-apart / REACH)


def _with_noise(covariance: FloatArray) -> FloatArray:
    return covariance + NOISE**2 * np.eye(len(covariance))


EVALUATIONS = 4000
"""Of each of the two searches before a measurement, one with the most probable costs, one with drawn ones."""
DRAWS, MOST_CANDIDATES = 16, 64
"""Draws of the costs that choose the next placement, and placements that they choose from."""

Measure = Callable[[IntArray], float]
"""Measures the step of a placement, in seconds; NaN if it cannot be run."""


def adapt(
    models: Sequence[Corrections],
    starts: Sequence[IntArray],
    measure: Measure,
    count: int,
    rng: np.random.Generator,
) -> tuple[IntArray, FloatArray]:
    """Measures placements, the first of `starts` first, and searches with corrected costs between them.

    The next placement is that of greatest expected improvement on the shortest measured step (Jones et al.,
    Efficient Global Optimization of Expensive Black-Box Functions, 1998).

    Args:
        models: models of the costs, see `models_of`.
        starts: placements that were found with the costs of the problem, best first; at least one.
        measure: called with the device of each op, (n_ops,).
        count: placements to measure; fewer are if the searches find no others.

    Returns:
        What was measured, in this order: devices of the ops, (n, n_ops), and seconds, (n,).
    """
    pool = {placement.tobytes(): placement for placement in starts}
    measured: dict[bytes, tuple[IntArray, float]] = {}
    posterior, next_one = prior(models), starts[0]
    while True:
        seconds = measure(next_one)
        measured[next_one.tobytes()] = next_one, seconds
        if len(measured) == count:
            break
        if seconds > 0:
            posterior = posterior.updated(next_one, seconds)
        for costs in (posterior.likely, posterior.draw(rng)):
            for placement in _searched(costs[0].corrected(costs[1]), np.stack([*pool.values()]), rng):
                pool.setdefault(placement.tobytes(), placement)
        candidates = [placement for key, placement in pool.items() if key not in measured]
        if not candidates:
            break
        next_one = _most_promising(posterior, np.stack(candidates), rng)
    devices_of, steps_s = zip(*measured.values(), strict=True)
    return np.stack(devices_of), np.array(steps_s)


def _searched(problem: Problem, devices_of: IntArray, rng: np.random.Generator) -> list[IntArray]:
    """Searches from heuristics and from placements; returns the best that have the memory."""
    search = SearchState(problem, Budget(EVALUATIONS + len(devices_of)))
    search.score(devices_of)
    refine(search, rng)
    return [leader.device_of for leader in search.leaders if leader.score[0] == 0.0]


def _most_promising(posterior: Posterior, candidates: IntArray, rng: np.random.Generator) -> IntArray:
    """Returns the placement of greatest expected improvement, of candidates (n, n_ops)."""
    mean, _ = posterior.predict(posterior.likely, candidates)
    candidates = candidates[np.argsort(mean, kind="stable")[:MOST_CANDIDATES]]
    best = posterior.log_s.min() if len(posterior.log_s) else mean.max()
    gain = np.zeros(len(candidates))
    for _ in range(DRAWS):
        mean, spread = posterior.predict(posterior.draw(rng), candidates)
        spread = np.maximum(spread, 1e-6)
        by = (best - mean) / spread
        gain += spread * (by * norm.cdf(by) + norm.pdf(by))
    return candidates[int(gain.argmax())]
