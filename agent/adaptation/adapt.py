"""Searches with few measurements: each corrects the costs of the simulator, and so what is measured next."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

import numpy as np
from scipy.stats import norm

from agent.adaptation.corrections import Corrections
from agent.adaptation.posterior import Posterior, fit
from agent.placers.base import Budget, SearchState
from agent.placers.search.annealing import anneal_from_leaders
from agent.placers.search.refine import refine
from graphs.system.array_types import FloatArray, IntArray

EVALUATIONS, SEARCHES, FROM_KNOWN = 5000, 4, 2
"""Evaluations of a search, and searches before a measurement: one with the most probable costs, the others
with drawn ones."""
DRAWS, MOST_CANDIDATES = 32, 64
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

    The next placement is that of greatest expected improvement on the shortest measured step.

    Args:
        models: of the costs, as `models_of` makes them.
        starts: placements that were found with the costs of the problem, best first; at least one.
        measure: called with the device of each op, (n_ops,).
        count: placements to measure; fewer are if the searches find no others.

    Returns:
        What was measured, in this order: devices of the ops, (n, n_ops), and seconds, (n,).
    """
    pool = {_key(each): np.asarray(each, dtype=np.int64) for each in starts}
    found: dict[bytes, tuple[IntArray, float]] = {}
    next_one: IntArray | None = next(iter(pool.values()))
    posterior = None
    while next_one is not None:
        found[_key(next_one)] = next_one, measure(next_one)
        if len(found) == count:
            break
        posterior = _learned(models, found.values(), posterior)
        for each in _searched(posterior, list(pool.values()), rng) if posterior else ():
            pool.setdefault(_key(each), each)
        candidates = [each for key, each in pool.items() if key not in found]
        next_one = _most_promising(posterior, candidates, rng)
    devices_of, seconds = zip(*found.values(), strict=True)
    return np.stack(devices_of), np.array(seconds)


def _learned(
    models: Sequence[Corrections], found: Iterable[tuple[IntArray, float]], before: Posterior | None
) -> Posterior | None:
    """Fits every model to the placements that could be run; None if there is none."""
    good = [(device_of, seconds) for device_of, seconds in found if seconds > 0]
    if not good:
        return None
    measured, log_s = np.stack([each for each, _ in good]), np.log([seconds for _, seconds in good])
    starts = [fit.mean for fit in before.fits] if before else [np.zeros(len(each.names)) for each in models]
    fits = [fit(model, measured, log_s, start) for model, start in zip(models, starts, strict=True)]
    return Posterior(measured, log_s, fits)


def _key(device_of: IntArray) -> bytes:
    return np.ascontiguousarray(device_of, dtype=np.int64).tobytes()


def _searched(posterior: Posterior, known: Sequence[IntArray], rng: np.random.Generator) -> list[IntArray]:
    """Searches with the most probable costs, and with drawn ones, from the placements that are known."""
    found: list[IntArray] = []
    for number in range(SEARCHES):
        corrections, logs = posterior.draw(rng) if number % 2 else posterior.likely
        search = SearchState(corrections.corrected(logs), Budget(EVALUATIONS))
        if number < FROM_KNOWN:
            search.score(np.stack(known))
            anneal_from_leaders(search, rng)
        else:
            refine(search, rng)
        found += [leader.device_of for leader in search.leaders if leader.score[0] == 0.0]
    return found


def _most_promising(
    posterior: Posterior | None, candidates: list[IntArray], rng: np.random.Generator
) -> IntArray | None:
    """Returns the placement of greatest expected improvement, None if there is none."""
    if posterior is None or not candidates:
        return next(iter(candidates), None)
    mean, _ = posterior.predict(posterior.likely, np.stack(candidates))
    kept = [candidates[index] for index in np.argsort(mean, kind="stable")[:MOST_CANDIDATES]]
    best = posterior.log_s.min()
    gain = np.zeros(len(kept))
    for _ in range(DRAWS):
        mean, spread = posterior.predict(posterior.draw(rng), np.stack(kept))
        spread = np.maximum(spread, 1e-6)
        by = (best - mean) / spread
        gain += spread * (by * norm.cdf(by) + norm.pdf(by))
    found: IntArray = kept[int(gain.argmax())]
    return found
