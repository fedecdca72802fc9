"""Common practice: stages of equally many layers, of equally many parameters, or of equal time."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agent.placers.pipeline.cutting import cut_by_load
from agent.placers.pipeline.search import Cuts, PipelineSearch, pipeline_placer
from envs.pipeline.stages import phases_of
from graphs.granularity import with_granularity
from graphs.system.array_types import FloatArray


@pipeline_placer("single")
def single(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Puts all on the device that is fastest alone; devices of equal time and memory count once."""
    seen = set()
    for device in np.argsort(search.problem.single_device_s, kind="stable").tolist():
        kind = search.problem.single_device_s[device], search.problem.cluster.devices[device].memory_bytes
        if search.left and kind not in seen:
            seen.add(kind)
            search.score_cuts(Cuts(tuple(range(search.pipeline.stages_per_device)), (device,)))


@pipeline_placer("equal-layers")
def equal_layers(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device equally many layers, in the order of the cluster.

    Layers are those of the module paths; of a graph without paths, its forward ops.
    """
    _score_shares(search, _layers(search))


@pipeline_placer("equal-params")
def equal_params(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device equally many bytes of parameters, in the order of the cluster."""
    _score_shares(search, search.chain.resident_bytes)


@pipeline_placer("equal-time")
def equal_time(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device in the order of the cluster the same time, by its speed."""
    ranks = tuple(range(_usable(search)))
    search.score_cuts(balanced(search, ranks))


def _score_shares(search: PipelineSearch, weights: FloatArray) -> None:
    n_ranks = _usable(search)
    n_stages = n_ranks * search.pipeline.stages_per_device
    search.score_cuts(Cuts(cut_equally(weights, n_stages), tuple(range(n_ranks))))


def _usable(search: PipelineSearch) -> int:
    """The most devices that the schedule runs on."""
    return next(n for n in range(search.most_ranks, 0, -1) if search.can_use(n))


def _layers(search: PipelineSearch) -> FloatArray:
    """1 for each piece that begins a layer, else 0, (n_pieces,)."""
    graph = search.problem.graph
    forward = np.flatnonzero(phases_of(graph) == 0)
    if not any(graph.modules):
        return np.ones(search.chain.n_pieces)
    unit = with_granularity(graph, "layer").unit_of[forward]
    _, first = np.unique(unit, return_index=True)
    begins = np.bincount(search.chain.piece_of[forward[first]], minlength=search.chain.n_pieces)
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


def balanced(search: PipelineSearch, ranks: Sequence[int]) -> Cuts:
    """Finds the cuts whose greatest compute time of a stage is least, for devices in a given order."""
    seconds = search.chain.seconds_before[list(ranks) * search.pipeline.stages_per_device]
    first = np.empty(len(seconds), dtype=np.int64)
    cut_by_load(seconds, first)
    return Cuts(tuple(first.tolist()), tuple(ranks))
