"""Search on the simulated pipelined step: annealing of cuts, its moves, and where it begins."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import accumulate, permutations

import numpy as np

from agent.pipeline.pipedream import pipedream
from agent.pipeline.search import PipelineSearch
from agent.placers.base import placer
from envs.objective import OVER_BYTES, PIPELINE, TOTAL_S
from envs.pipeline.chain import Cuts
from envs.problem import kinds
from graphs.system.array_types import IntArray

HOT, COLD = 0.5, 1e-4
"""Temperature at first and at last, as a share of the step time."""
PENALTY = 0.2
"""Share of the step time, over the temperature, that counts for a device's whole memory over the limits."""
MOST_ORDERS = 24
"""Orders of the devices that starts are made for, of each number of devices."""
PROGRAMME_S = 0.5
"""Seconds that a dynamic programme, which looks for plans that fit, may need."""
SHARES = (0.2, 0.6)
"""Progress at which `refine` ends its starts, and its descents."""


@placer("single", places=[PIPELINE])
def single(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Puts all on the device that is fastest alone; devices of equal time and memory count once."""
    for cuts in search.pipelined.singles():
        if search.left:
            search.score_cuts(cuts)


@placer("annealing", places=[PIPELINE], uses_rng=True)
def annealing(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Anneals from the plan of equal time on all devices."""
    start = search.pipelined.balanced(range(search.pipelined.usable[0]))
    search.score_cuts(start)
    anneal(search, start, rng)


@placer("refine", places=[PIPELINE], uses_rng=True)
def refine(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Starts from plans of equal time on several orders and numbers of devices, descends, then anneals."""
    scored: list[tuple[tuple[float, float], Cuts]] = []
    for cuts in starts(search, rng):
        if scored and (not search.left or search.progress > SHARES[0]):
            break
        scored.append((search.score_cuts(cuts), cuts))
        if scored[-1][0][OVER_BYTES] and search.can_recompute:
            again = cuts._replace(recomputed=(True,) * len(cuts.first))
            scored.append((search.score_cuts(again), again))
    if all(score[OVER_BYTES] for score, _ in scored) and search.left and search.seconds_left > PROGRAMME_S:
        pipedream(search, rng)
        scored.append((search.best_score, _best(search)))
    scored.sort(key=lambda pair: pair[0])
    for _, cuts in scored:
        descend(search, cuts, SHARES[1])
    anneal(search, _best(search), rng)


def _best(search: PipelineSearch) -> Cuts:
    assert search.best_cuts is not None, "at least one plan was scored"
    return search.best_cuts


def starts(search: PipelineSearch, rng: np.random.Generator) -> Iterator[Cuts]:
    """Yields plans of equal time, all devices first, then fewer; equal devices count once."""
    alike = _alike(search)
    for n_ranks in search.pipelined.usable:
        for ranks in _orders(search, alike, n_ranks, rng):
            yield search.pipelined.balanced(ranks)


def _alike(search: PipelineSearch) -> IntArray:
    """A number for each device, equal for devices with equal times and memory whose links are equal too."""
    cluster = search.problem.cluster
    links = (np.sort(matrix, axis=1).T for matrix in (cluster.bytes_per_s, cluster.latency_s))
    return kinds(np.vstack([search.problem.single_device_s, cluster.memory_bytes, *links]))[1]


def _orders(
    search: PipelineSearch, alike: IntArray, n_ranks: int, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yields at most `MOST_ORDERS` orders of so many devices that are not alike."""
    n_devices, seen = search.problem.n_devices, set()
    fastest = sorted(range(n_devices), key=lambda device: search.problem.single_device_s[device])
    are_few = math.perm(n_devices, n_ranks) <= 5_000
    orders = permutations(fastest, n_ranks) if are_few else _draws(fastest, n_ranks, rng)
    for order in orders:
        key = tuple(alike[list(order)].tolist())
        if key not in seen:
            seen.add(key)
            yield tuple(order)
        if len(seen) >= MOST_ORDERS:
            return


def _draws(fastest: Sequence[int], n_ranks: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    yield tuple(sorted(fastest[:n_ranks]))
    yield tuple(fastest[:n_ranks])
    for _ in range(4 * MOST_ORDERS):
        yield tuple(rng.permutation(fastest)[:n_ranks].tolist())


def descend(search: PipelineSearch, cuts: Cuts, until: float) -> Cuts:
    """Moves cuts, ever less far, and recomputes stages or not, as long as that makes the step shorter.

    Args:
        until: progress of the budget at which to stop.
    """
    best = search.score_cuts(cuts)
    far = max(1, search.pipelined.chain.n_pieces // 8)
    while far:
        improved = False
        for move in _moves(search, cuts, far):
            if not search.left or search.progress > until:
                return cuts
            moved = move(cuts)
            until_s = np.inf if best[OVER_BYTES] else best[TOTAL_S]
            if moved is not None and (score := search.score_cuts(moved, until_s=until_s)) < best:
                best, cuts, improved = score, moved, True
        if not improved:
            far //= 2
    return cuts


def _moves(search: PipelineSearch, cuts: Cuts, far: int) -> Iterator[Callable[[Cuts], Cuts | None]]:
    """Yields moves of each cut and, where memory binds, of the recomputation of each stage."""
    for stage in range(1, len(cuts.first)):
        for by in (far, -far):
            yield partial(shifted, search, stage=stage, by=by)
    if search.can_recompute:
        for stage in range(len(cuts.first)):
            yield partial(toggled, stage=stage)


def anneal(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> None:
    """Anneals a plan for what is left of the budget.

    Bytes over the memory limits count as time, the more the colder it is. The greatest cost of a plan that
    replaces the present one is drawn before, as the memory of plans with a longer step need not be found.

    Source: Kirkpatrick, Gelatt and Vecchi 1983.
    """
    present, began = search.score_cuts(cuts), search.progress
    memory = search.problem.cluster.memory_bytes.mean()
    while search.left:
        moved = neighbour(search, cuts, rng)
        if moved is None:
            search.spend(1)
            continue
        done = (search.progress - began) / max(1 - began, 1e-9)
        temperature = HOT * (COLD / HOT) ** done
        penalty = PENALTY / (temperature * memory)
        most = present[TOTAL_S] * (1 + penalty * present[OVER_BYTES])
        most *= 1 - temperature * math.log(1 - rng.random())
        score = search.score_cuts(moved, until_s=most)
        if score[TOTAL_S] * (1 + penalty * score[OVER_BYTES]) <= most:
            present, cuts = score, moved


Move = Callable[[PipelineSearch, Cuts, np.random.Generator], Cuts | None]
"""Draws a plan next to another; None where there is none of its kind."""

DRAWS = 20
"""Draws of a move, at most, until there is one of its kind."""


def neighbour(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Draws a plan next to another."""
    for _ in range(DRAWS):
        moved = MOVES[bisect(BOUNDS, sum(_WEIGHTS.values()) * rng.random())](search, cuts, rng)
        if moved is not None:
            return moved
    return None


def shifted(search: PipelineSearch, cuts: Cuts, stage: int, by: int) -> Cuts | None:
    """Moves the cut before a stage; None where a stage would have no piece."""
    first = list(cuts.first)
    first[stage] += by
    end = first[stage + 1] if stage + 1 < len(first) else search.pipelined.chain.n_pieces
    return cuts._replace(first=tuple(first)) if first[stage - 1] < first[stage] < end else None


def toggled(cuts: Cuts, stage: int) -> Cuts:
    """Recomputes a stage, or does not any more."""
    recomputed = list(cuts.recomputed or (False,) * len(cuts.first))
    recomputed[stage] = not recomputed[stage]
    return cuts._replace(recomputed=tuple(recomputed) if any(recomputed) else ())


def on_devices(search: PipelineSearch, cuts: Cuts, ranks: Sequence[int]) -> Cuts | None:
    """Cuts stages of equal time for other devices; None where the schedule cannot use them."""
    if not search.pipelined.can_use(len(ranks)):
        return None
    moved = search.pipelined.balanced(ranks)
    share = len(cuts.first) / len(moved.first)
    again = [cuts.recomputed[int(stage * share)] for stage in range(len(moved.first)) if cuts.recomputed]
    return moved._replace(recomputed=tuple(again) if any(again) else ())


def _shift(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    n_stages = len(cuts.first)
    if n_stages < 2:
        return None
    far = int(2 ** (rng.random() * math.log2(max(search.pipelined.chain.n_pieces / n_stages, 2))))
    return shifted(search, cuts, int(rng.integers(1, n_stages)), far if rng.random() < 0.5 else -far)


def _recompute(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    return toggled(cuts, int(rng.integers(len(cuts.first)))) if search.can_recompute else None


def _exchange(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    if len(cuts.ranks) < 2:
        return None
    one, other = rng.choice(len(cuts.ranks), 2, replace=False).tolist()
    ranks = list(cuts.ranks)
    ranks[one], ranks[other] = ranks[other], ranks[one]
    if rng.random() < 0.5:
        return search.pipelined.balanced(ranks)._replace(recomputed=cuts.recomputed)
    return cuts._replace(ranks=tuple(ranks))


def _replace(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    others = _unused(search, cuts)
    if not others:
        return None
    ranks = list(cuts.ranks)
    ranks[int(rng.integers(len(ranks)))] = others[int(rng.integers(len(others)))]
    return cuts._replace(ranks=tuple(ranks))


def _add(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    others, ranks = _unused(search, cuts), list(cuts.ranks)
    if not others:
        return None
    ranks.insert(int(rng.integers(len(ranks) + 1)), others[int(rng.integers(len(others)))])
    return on_devices(search, cuts, ranks)


def _remove(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    ranks = list(cuts.ranks)
    if len(ranks) < 2:
        return None
    ranks.pop(int(rng.integers(len(ranks))))
    return on_devices(search, cuts, ranks)


def _unused(search: PipelineSearch, cuts: Cuts) -> list[int]:
    return [device for device in range(search.problem.n_devices) if device not in cuts.ranks]


_WEIGHTS: dict[Move, int] = {_shift: 56, _recompute: 10, _exchange: 8, _replace: 8, _add: 4, _remove: 4}
MOVES, BOUNDS = tuple(_WEIGHTS), list(accumulate(_WEIGHTS.values()))[:-1]
"""Kinds of moves, and the sums of their weights; where there is none of a kind, another one is drawn."""
