"""Searches with few measurements: each corrects the costs of the simulator, and so what is measured next."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from scipy.stats import norm

from agent.adaptation.corrections import Corrections
from agent.adaptation.posterior import Posterior, prior
from agent.placers.base import Budget, SearchState
from agent.placers.search.refine import refine
from envs.problem import Problem
from graphs.system.array_types import FloatArray, IntArray

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
        models: of the costs, as `models_of` makes them.
        starts: placements that were found with the costs of the problem, best first; at least one.
        measure: called with the device of each op, (n_ops,).
        count: placements to measure; fewer are if the searches find no others.

    Returns:
        What was measured, in this order: devices of the ops, (n, n_ops), and seconds, (n,).
    """
    pool = {each.tobytes(): each for each in starts}
    found: dict[bytes, tuple[IntArray, float]] = {}
    posterior, next_one = prior(models), starts[0]
    while True:
        seconds = measure(next_one)
        found[next_one.tobytes()] = next_one, seconds
        if len(found) == count:
            break
        if seconds > 0:
            posterior = posterior.updated(next_one, seconds)
        for costs in (posterior.likely, posterior.draw(rng)):
            for each in _searched(costs[0].corrected(costs[1]), list(pool.values()), rng):
                pool.setdefault(each.tobytes(), each)
        candidates = [each for key, each in pool.items() if key not in found]
        if not candidates:
            break
        next_one = _most_promising(posterior, np.stack(candidates), rng)
    devices_of, steps_s = zip(*found.values(), strict=True)
    return np.stack(devices_of), np.array(steps_s)


def _searched(problem: Problem, known: Sequence[IntArray], rng: np.random.Generator) -> list[IntArray]:
    """Searches from heuristics and the placements that are known; returns the best that have the memory."""
    search = SearchState(problem, Budget(EVALUATIONS + len(known)))
    search.score(np.stack(known))
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
    found: IntArray = candidates[int(gain.argmax())]
    return found
