"""Common practice: stages of equally many layers, of equally many parameters, or of equal time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.placers.base import SearchState, placer
from envs.objective import PIPELINE, Cuts
from envs.pipeline.stages import phases_of
from graphs.granularity import with_granularity
from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel


def single(search: SearchState, rng: np.random.Generator) -> None:
    """Puts all on the device that is fastest alone; devices of equal time and memory count once."""
    for cuts in search.pipelined.singles():
        if search.left:
            search.score_cuts(cuts)


@placer("equal-layers", places=[PIPELINE])
def equal_layers(search: SearchState, rng: np.random.Generator) -> None:
    """Gives each device equally many layers, in the order of the cluster.

    Layers are those of the module paths; of a graph without paths, its forward ops.
    """
    _score_shares(search, _layers(search))


@placer("equal-params", places=[PIPELINE])
def equal_params(search: SearchState, rng: np.random.Generator) -> None:
    """Gives each device equally many bytes of parameters, in the order of the cluster."""
    _score_shares(search, search.pipelined.chain.resident_bytes)


@placer("equal-time", places=[PIPELINE])
def equal_time(search: SearchState, rng: np.random.Generator) -> None:
    """Gives each device in the order of the cluster the same time, by its speed."""
    search.score_cuts(balanced(search, range(search.pipelined.usable[0])))


def _score_shares(search: SearchState, weights: FloatArray) -> None:
    n_ranks = search.pipelined.usable[0]
    n_stages = n_ranks * search.pipelined.pipeline.stages_per_device
    search.score_cuts(Cuts(cut_equally(weights, n_stages), tuple(range(n_ranks))))


def _layers(search: SearchState) -> FloatArray:
    """1 for each piece that begins a layer, else 0, (n_pieces,)."""
    graph, chain = search.problem.graph, search.pipelined.chain
    forward = np.flatnonzero(phases_of(graph) == 0)
    if not any(graph.modules):
        return np.ones(chain.n_pieces)
    unit = with_granularity(graph, "layer").unit_of[forward]
    _, first = np.unique(unit, return_index=True)
    begins = np.bincount(chain.piece_of[forward[first]], minlength=chain.n_pieces)
    return np.minimum(begins, 1).astype(np.float64)


def cut_equally(weights: FloatArray, n_stages: int) -> tuple[int, ...]:
    """Cuts pieces into stages of nearly equal weight; each has at least one piece.

    Args:
        weights: of the pieces, at least 0, (n_pieces,).
        n_stages: at most n_pieces.

    Returns:
        First piece of each stage.
    """
    before = np.concatenate([[0.0], np.cumsum(weights)])
    wanted = before[-1] * np.arange(n_stages) / n_stages
    first = [int(np.abs(before[:-1] - share).argmin()) for share in wanted]
    for stage in range(1, n_stages):
        first[stage] = max(first[stage], first[stage - 1] + 1)
    for stage in range(n_stages - 1, 0, -1):
        first[stage] = min(first[stage], len(weights) - (n_stages - stage))
    return tuple(first)


def balanced(search: SearchState, ranks: Sequence[int]) -> Cuts:
    """Finds the cuts whose greatest compute time of a stage is least, for devices in a given order."""
    objective = search.pipelined
    seconds = objective.chain.seconds_before[list(ranks) * objective.pipeline.stages_per_device]
    first = np.empty(len(seconds), dtype=np.int64)
    cut_by_load(seconds, first)
    return Cuts(tuple(first.tolist()), tuple(ranks))


ROUNDS = 60
"""Halvings of the interval in which the least load lies; after that many it is a rounding error wide."""


@kernel(entry=True)
def cut_by_load(before, first):
    """Finds the cuts whose greatest load of a stage is least; each stage has at least one piece.

    The least load is found by bisection: each stage in turn takes as many pieces as it can within a load.

    Args:
        before: load of all pieces before each one, and of all, for each stage, (n_stages, n_pieces + 1).
        first: first piece of each stage, int64 (n_stages,); written.
    """
    n_stages, n_pieces = before.shape[0], before.shape[1] - 1
    low, high = 0.0, 0.0
    for stage in range(n_stages):
        high = max(high, before[stage, n_pieces])
    for _ in range(ROUNDS):
        load = (low + high) / 2
        if fill(before, load, first) >= n_pieces:
            high = load
        else:
            low = load
    fill(before, high, first)
    for stage in range(n_stages - 1, 0, -1):
        first[stage] = min(first[stage], n_pieces - (n_stages - stage))
    for stage in range(1, n_stages):
        first[stage] = max(first[stage], first[stage - 1] + 1)


@kernel
def fill(before, load, first):
    """Gives each stage in turn all the pieces that it can take within a load.

    Args:
        before: as of `cut_by_load`.
        load: seconds.
        first: first piece of each stage, int64 (n_stages,); written.

    Returns:
        End of the last stage.
    """
    at = 0
    for stage in range(before.shape[0]):
        first[stage] = at
        row = before[stage]
        at = np.searchsorted(row, row[at] + load * (1 + 1e-12), side="right") - 1
    return at
