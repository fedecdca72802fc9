"""Search on the simulated pipelined step: simulated annealing over cuts, devices and their number."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import permutations

import numpy as np

from agent.pipelines.equal import balanced
from agent.pipelines.search import Cuts, PipelineSearch, pipeline_placer
from agent.placers.scores import OVER_BYTES, TOTAL_S

HOT, COLD = 0.05, 1e-4
"""Temperature at first and at last, as a share of the step time."""
MOST_ORDERS = 24
"""Orders of the devices that starts are made for, of each number of devices."""
SHARES = (0.2, 0.6)
"""Progress at which `refine` ends its starts, and its descents."""


@pipeline_placer("annealing", uses_rng=True)
def annealing(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Anneals from the plan of equal time on all devices."""
    n_ranks = next(n for n in range(search.most_ranks, 0, -1) if search.can_use(n))
    start = balanced(search, range(n_ranks))
    search.score_cuts(start)
    anneal(search, start, rng)


@pipeline_placer("refine", uses_rng=True)
def refine(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Starts from plans of equal time on several orders and numbers of devices, descends, then anneals."""
    refine_from(search, (), rng)


def refine_from(search: PipelineSearch, starts: Sequence[Cuts], rng: np.random.Generator) -> None:
    """Does what `refine` does, with other starts before its own."""
    scored = [(search.score_cuts(cuts), cuts) for cuts in starts]
    for ranks in start_orders(search, rng):
        if scored and (not search.left or search.progress > SHARES[0]):
            break
        cuts = balanced(search, ranks)
        scored.append((search.score_cuts(cuts), cuts))
    scored.sort(key=lambda each: each[0])
    for _, cuts in scored:
        descend(search, cuts, SHARES[1])
    if search.cuts is not None:
        anneal(search, search.cuts, rng)


def start_orders(search: PipelineSearch, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    """Yields orders of devices for starts, all devices first, then fewer; equal devices count once."""
    alike = _alike(search)
    for n_ranks in range(search.most_ranks, 0, -1):
        if search.can_use(n_ranks):
            yield from _orders(search, alike, n_ranks, rng)


def _alike(search: PipelineSearch) -> list[int]:
    """A number for each device, equal for devices with equal times and memory whose links are equal too."""
    cluster, seconds = search.problem.cluster, search.problem.single_device_s
    keys = [
        (seconds[at], device.memory_bytes, *sorted(cluster.bytes_per_s[at]), *sorted(cluster.latency_s[at]))
        for at, device in enumerate(cluster.devices)
    ]
    known = {key: at for at, key in enumerate(dict.fromkeys(keys))}
    return [known[key] for key in keys]


def _orders(
    search: PipelineSearch, alike: Sequence[int], n_ranks: int, rng: np.random.Generator
) -> Iterator[tuple[int, ...]]:
    """Yields at most `MOST_ORDERS` orders of so many devices that are not alike."""
    n_devices, seen = search.problem.n_devices, set()
    fastest = sorted(range(n_devices), key=lambda device: search.problem.single_device_s[device])
    everything = math.perm(n_devices, n_ranks) <= 5_000
    found = permutations(fastest, n_ranks) if everything else _draws(fastest, n_ranks, rng)
    for order in found:
        kinds = tuple(alike[device] for device in order)
        if kinds not in seen:
            seen.add(kinds)
            yield tuple(order)
        if len(seen) >= MOST_ORDERS:
            return


def _draws(fastest: Sequence[int], n_ranks: int, rng: np.random.Generator) -> Iterator[tuple[int, ...]]:
    yield tuple(sorted(fastest[:n_ranks]))
    yield tuple(fastest[:n_ranks])
    for _ in range(4 * MOST_ORDERS):
        yield tuple(rng.permutation(fastest)[:n_ranks].tolist())


def descend(search: PipelineSearch, cuts: Cuts, until: float) -> Cuts:
    """Moves cuts, ever less far, as long as a move makes the step shorter.

    Args:
        until: progress of the budget at which to stop.
    """
    best = search.score_cuts(cuts)
    far = max(1, search.chain.n_pieces // 8)
    while far:
        improved = False
        for stage in range(1, len(cuts.first)):
            for by in (far, -far):
                if not search.left or search.progress > until:
                    return cuts
                moved = shifted(search, cuts, stage, by)
                if moved is not None and (score := search.score_cuts(moved)) < best:
                    best, cuts, improved = score, moved, True
        if not improved:
            far //= 2
    return cuts


def shifted(search: PipelineSearch, cuts: Cuts, stage: int, by: int) -> Cuts | None:
    """Moves the cut before a stage; None where a stage would have no piece."""
    first = list(cuts.first)
    first[stage] += by
    end = first[stage + 1] if stage + 1 < len(first) else search.chain.n_pieces
    return Cuts(tuple(first), cuts.ranks) if first[stage - 1] < first[stage] < end else None


def anneal(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> None:
    """Anneals a plan for what is left of the budget.

    Source: Kirkpatrick, Gelatt and Vecchi 1983.
    """
    present, began = search.score_cuts(cuts), search.progress
    while search.left:
        moved = neighbour(search, cuts, rng)
        if moved is None:
            search.spend(1)
            continue
        score = search.score_cuts(moved)
        done = (search.progress - began) / max(1 - began, 1e-9)
        if _accepts(present, score, HOT * (COLD / HOT) ** done, rng):
            present, cuts = score, moved


def _accepts(
    present: tuple[float, float], score: tuple[float, float], temperature: float, rng: np.random.Generator
) -> bool:
    """Says whether a plan replaces the present one: by memory first, then by time."""
    if score[OVER_BYTES] != present[OVER_BYTES]:
        return score[OVER_BYTES] < present[OVER_BYTES]
    worse = score[TOTAL_S] / present[TOTAL_S] - 1 if present[TOTAL_S] < np.inf else 0.0
    return worse <= 0 or rng.random() < math.exp(-worse / temperature)


def neighbour(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Draws a plan next to another: a cut moved, devices exchanged, a device less or more."""
    kind = rng.random()
    n_ranks, n_stages = len(cuts.ranks), len(cuts.first)
    if kind < 0.7 and n_stages > 1:
        far = int(2 ** (rng.random() * math.log2(max(search.chain.n_pieces / n_stages, 2))))
        return shifted(search, cuts, int(rng.integers(1, n_stages)), far if rng.random() < 0.5 else -far)
    others = [device for device in range(search.problem.n_devices) if device not in cuts.ranks]
    if kind < 0.8 and n_ranks > 1:
        one, other = rng.choice(n_ranks, 2, replace=False).tolist()
        ranks = list(cuts.ranks)
        ranks[one], ranks[other] = ranks[other], ranks[one]
        return balanced(search, ranks) if rng.random() < 0.5 else Cuts(cuts.first, tuple(ranks))
    if kind < 0.9 and others:
        ranks = list(cuts.ranks)
        ranks[int(rng.integers(n_ranks))] = others[int(rng.integers(len(others)))]
        return Cuts(cuts.first, tuple(ranks))
    ranks = list(cuts.ranks)
    if rng.random() < 0.5 and others:
        ranks.insert(int(rng.integers(n_ranks + 1)), others[int(rng.integers(len(others)))])
    elif n_ranks > 1:
        ranks.pop(int(rng.integers(n_ranks)))
    return balanced(search, ranks) if search.can_use(len(ranks)) else None
