"""Moves of a search of pipelines: from a plan to one next to it."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable
from itertools import accumulate

import numpy as np

from agent.pipelines.equal import balanced
from agent.pipelines.search import Cuts, PipelineSearch

Groups = list[list[int]]
"""Devices of each stage; where stages go round the devices, those of one round."""
Move = Callable[[PipelineSearch, Cuts, np.random.Generator], Cuts | None]
"""Draws a plan next to another; None where there is none of its kind."""

DRAWS = 20
"""Draws of a move, at most, until there is one of its kind."""


def neighbour(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Draws a plan next to another."""
    for _ in range(DRAWS):
        moved = MOVES[bisect(BOUNDS, rng.random())](search, cuts, rng)
        if moved is not None:
            return moved
    return None


def shifted(search: PipelineSearch, cuts: Cuts, stage: int, by: int) -> Cuts | None:
    """Moves the cut before a stage; None where a stage would have no piece."""
    first = list(cuts.first)
    first[stage] += by
    end = first[stage + 1] if stage + 1 < len(first) else search.chain.n_pieces
    return cuts._replace(first=tuple(first)) if first[stage - 1] < first[stage] < end else None


def toggled(cuts: Cuts, stage: int) -> Cuts:
    """Recomputes a stage, or does not any more."""
    recomputed = list(cuts.recomputed or (False,) * len(cuts.first))
    recomputed[stage] = not recomputed[stage]
    return cuts._replace(recomputed=tuple(recomputed) if any(recomputed) else ())


def regrouped(
    search: PipelineSearch, cuts: Cuts, groups: Groups, first: tuple[int, ...] | None = None
) -> Cuts | None:
    """Gives the stages of a plan other devices; None where the schedule cannot use them.

    Args:
        first: first piece of each stage; by default, the stages get equal time.
    """
    most = max(map(len, groups))
    if not search.can_use(len(groups)) or most > search.pipeline.microbatches:
        return None
    ranks = tuple(device for group in groups for device in group)
    replicas = tuple(map(len, groups)) if most > 1 else ()
    order = cuts.order if first else ()
    first = first or balanced(search, ranks, replicas).first
    share = len(cuts.first) / len(first)
    again = [cuts.recomputed[int(stage * share)] for stage in range(len(first))] if cuts.recomputed else []
    return Cuts(first, ranks, replicas, tuple(again) if any(again) else (), order)


def _shift(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    n_stages = len(cuts.first)
    if n_stages < 2:
        return None
    far = int(2 ** (rng.random() * math.log2(max(search.chain.n_pieces / n_stages, 2))))
    return shifted(search, cuts, int(rng.integers(1, n_stages)), far if rng.random() < 0.5 else -far)


def _recompute(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    return toggled(cuts, int(rng.integers(len(cuts.first)))) if search.can_recompute else None


def _exchange(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Swaps two devices."""
    if len(cuts.ranks) < 2:
        return None
    one, other = rng.choice(len(cuts.ranks), 2, replace=False).tolist()
    ranks = list(cuts.ranks)
    ranks[one], ranks[other] = ranks[other], ranks[one]
    if rng.random() < 0.5:
        return balanced(search, ranks, cuts.replicas)._replace(recomputed=cuts.recomputed)
    return cuts._replace(ranks=tuple(ranks))


def _replace(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Uses another device for one."""
    others = _unused(search, cuts)
    if not others:
        return None
    ranks = list(cuts.ranks)
    ranks[int(rng.integers(len(ranks)))] = others[int(rng.integers(len(others)))]
    return cuts._replace(ranks=tuple(ranks))


def _add(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Adds a stage on an unused device."""
    others, groups = _unused(search, cuts), cuts.groups
    if not others:
        return None
    groups.insert(int(rng.integers(len(groups) + 1)), [others[int(rng.integers(len(others)))]])
    return regrouped(search, cuts, groups)


def _remove(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Removes a stage."""
    groups = cuts.groups
    if len(groups) < 2:
        return None
    groups.pop(int(rng.integers(len(groups))))
    return regrouped(search, cuts, groups)


def _give(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Gives a stage one more device: one that is unused, or one of a stage that has several."""
    if not search.pipeline.replicates:
        return None
    groups = cuts.groups
    target = int(rng.integers(len(groups)))
    several = [group for at, group in enumerate(groups) if len(group) > 1 and at != target]
    sources = several + [[device] for device in _unused(search, cuts)]
    if not sources:
        return None
    source = sources[int(rng.integers(len(sources)))]
    groups[target].append(source.pop(int(rng.integers(len(source)))))
    return regrouped(search, cuts, groups, cuts.first if rng.random() < 0.5 else None)


def _take(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Takes a device from a stage that has several."""
    groups = cuts.groups
    several = [group for group in groups if len(group) > 1]
    if not several:
        return None
    group = several[int(rng.integers(len(several)))]
    group.pop(int(rng.integers(len(group))))
    return regrouped(search, cuts, groups, cuts.first if rng.random() < 0.5 else None)


def _merge(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Makes one stage of two, on the devices of both."""
    groups, first = cuts.groups, list(cuts.first)
    if not search.pipeline.replicates or len(groups) < 2:
        return None
    stage = int(rng.integers(1, len(groups)))
    groups[stage - 1] += groups.pop(stage)
    first.pop(stage)
    return regrouped(search, cuts, groups, tuple(first) if rng.random() < 0.5 else None)


def _split(search: PipelineSearch, cuts: Cuts, rng: np.random.Generator) -> Cuts | None:
    """Makes two stages of one that has several devices."""
    groups = cuts.groups
    several = [stage for stage, group in enumerate(groups) if len(group) > 1]
    if not several:
        return None
    stage = several[int(rng.integers(len(several)))]
    at = int(rng.integers(1, len(groups[stage])))
    groups[stage : stage + 1] = [groups[stage][:at], groups[stage][at:]]
    return regrouped(search, cuts, groups)


def _unused(search: PipelineSearch, cuts: Cuts) -> list[int]:
    return [device for device in range(search.problem.n_devices) if device not in cuts.ranks]


_SHARES: dict[Move, float] = {
    _shift: 0.56,
    _recompute: 0.1,
    _exchange: 0.08,
    _replace: 0.08,
    _add: 0.04,
    _remove: 0.04,
    _give: 0.04,
    _take: 0.02,
    _merge: 0.02,
    _split: 0.02,
}
MOVES, BOUNDS = tuple(_SHARES), list(accumulate(_SHARES.values()))[:-1]
"""Kinds of moves, and the sums of their shares; where there is none of a kind, another one is drawn."""
