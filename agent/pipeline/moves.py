"""Moves of a search of pipelines: from a plan to one next to it."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Callable, Sequence
from itertools import accumulate

import numpy as np

from agent.pipeline.search import PipelineSearch
from envs.pipeline.chain import Cuts

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
