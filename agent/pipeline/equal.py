"""Common practice: stages of equally many layers, of equally many parameters, or of equal time."""

from __future__ import annotations

import numpy as np

from agent.pipeline.search import PipelineSearch
from agent.placers.base import placer
from envs.objective import PIPELINE
from envs.pipeline.chain import Cuts
from envs.pipeline.stages import phases_of
from graphs.granularity import with_granularity
from graphs.system.array_types import FloatArray


@placer("equal-layers", places=[PIPELINE])
def equal_layers(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device equally many layers, in the order of the cluster.

    Layers are those of the module paths; of a graph without paths, its forward ops.
    """
    _score_shares(search, _layers(search))


@placer("equal-params", places=[PIPELINE])
def equal_params(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device equally many bytes of parameters, in the order of the cluster."""
    _score_shares(search, search.pipelined.chain.resident_bytes)


@placer("equal-time", places=[PIPELINE])
def equal_time(search: PipelineSearch, rng: np.random.Generator) -> None:
    """Gives each device in the order of the cluster the same time, by its speed."""
    search.score_cuts(search.pipelined.balanced(range(search.pipelined.usable[0])))


def _score_shares(search: PipelineSearch, weights: FloatArray) -> None:
    n_ranks = search.pipelined.usable[0]
    n_stages = n_ranks * search.pipelined.pipeline.stages_per_device
    search.score_cuts(Cuts(cut_equally(weights, n_stages), tuple(range(n_ranks))))


def _layers(search: PipelineSearch) -> FloatArray:
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
        weights: weights of the pieces, at least 0, (n_pieces,).
        n_stages: number of stages, at most n_pieces.

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
