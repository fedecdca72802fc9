"""The state of episodes that place pipelines, and the arrays of a problem that they read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from envs.mdp.state import MEAN_OP_S, REWARD_S, mdp_arrays
from envs.pipeline.arrays import N_KINDS
from envs.pipeline.chain import Chain
from envs.pipeline.pipeline import GPIPE, Pipeline
from envs.pipeline.schedules import device_actions
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import phases_of
from envs.problem import Problem
from graphs.graph_columns import Csr
from graphs.system.array_types import FloatArray, IntArray

PIECE, N_STAGES, LAST_ACTION = range(3)
"""Columns of `PipelineEpisode.state`: index of the piece at hand, number of stages so far, and the device of
the last decision (-1 before the first)."""

MICROBATCHES, ALL_ALIVE, SPLITS = range(3)
"""Columns of `PieceArrays.rules`: number of microbatches; 1 = a stage keeps all of them alive (`gpipe`), not
only as many as there are stages from it on; 1 = gradients of weights are computed in actions of their own."""


class PieceArrays(NamedTuple):
    """The pieces of a graph, as the kernels read them."""

    op_ptr: IntArray  # (n_pieces + 1,) ops of a piece: op_item[op_ptr[i] : op_ptr[i + 1]]
    op_item: IntArray  # (n_ops,)
    first_op: IntArray  # (n_pieces,) first forward op of a piece, by which observations name it
    seconds: FloatArray  # (n_pieces, n_devices) forward and backward pass of a microbatch
    seconds_from: FloatArray  # (n_pieces + 1, n_devices) the same, of a piece and all after it
    resident: FloatArray  # (n_pieces,) bytes that a piece holds for the whole step
    held_ptr: IntArray  # (n_pieces + 1,) activations that the backward pass reads, by the later of two pieces
    held_from: IntArray  # (n_held,) the earlier one: an activation is kept where both are on one device
    held_bytes: FloatArray  # (n_held,)
    alike: IntArray  # (n_devices,) first device on which all ops take the same time
    slowness: FloatArray  # (n_devices,) single-device step time over the least
    scales: FloatArray  # (2,) seconds, columns MEAN_OP_S and REWARD_S of `envs.mdp.state`
    rules: IntArray  # (3,) columns MICROBATCHES, ALL_ALIVE and SPLITS


class RankAgenda(NamedTuple):
    """The actions of each stage in its order, one after the other; stage `s` has `ptr[s]` to `ptr[s + 1]`."""

    ptr: IntArray  # (n_stages + 1,)
    action: IntArray  # (n_entries,)
    microbatch: IntArray  # (n_entries,)


class PipelineEpisode(NamedTuple):
    """The state of one episode; stages are rows of the arrays of length n_devices."""

    device_of: IntArray  # (n_ops,) -1 = not placed
    stage_of: IntArray  # (n_ops,) -1 = not placed, or neither forward nor backward
    devices: IntArray  # (n_devices,) device of each stage
    first: IntArray  # (n_devices,) first piece of each stage
    load_s: FloatArray  # (n_devices,) seconds of each stage for a microbatch
    resident: FloatArray  # (n_devices,) bytes that each stage holds for the whole step
    held: FloatArray  # (n_devices,) bytes that each stage keeps of a microbatch until its backward pass
    state: IntArray  # (3,) columns PIECE, N_STAGES and LAST_ACTION
    time_s: FloatArray  # (1,) step time of the partial pipeline
    candidate_s: FloatArray  # (n_devices,) step time with the piece at hand there, -1 = it cannot go there


class PipelineCandidates(NamedTuple):
    """Results per device, (n_devices,); only those of candidates are set."""

    start_s: FloatArray  # of the stage's forward action, first microbatch
    finish_s: FloatArray
    load_s: FloatArray  # seconds of the stage for a microbatch
    bottleneck_s: FloatArray  # the largest load of a stage
    ahead_s: FloatArray  # the largest load if the rest is shared out by speed
    input_bytes: FloatArray  # bytes that the piece reads and that are there
    output_bytes: FloatArray  # bytes that placed ops there read of the piece
    input_s: FloatArray  # transfers of what the piece reads and is not there
    output_s: FloatArray  # transfers of what placed ops elsewhere read of the piece


def piece_arrays(pipelined: PipelinedProblem) -> PieceArrays:
    """Makes the arrays of a problem."""
    problem, chain = pipelined.problem, pipelined.chain
    members = Csr.from_pairs(chain.piece_of, np.arange(problem.graph.n_ops), chain.n_pieces)
    forward = np.flatnonzero(phases_of(problem.graph) == 0)
    first = np.searchsorted(chain.piece_of[forward], np.arange(chain.n_pieces))
    seconds = np.ascontiguousarray(chain.seconds[:2].sum(axis=0))
    later = np.concatenate([seconds[::-1].cumsum(axis=0)[::-1], np.zeros((1, problem.n_devices))])
    held_by, held_from, held_bytes = _held(chain)
    times = np.concatenate([problem.op_seconds, pipelined.arrays.accumulate_s])
    _, alike, which = np.unique(times, axis=1, return_index=True, return_inverse=True)
    known, pipeline = mdp_arrays(problem), pipelined.pipeline
    scales = known.scales.copy()
    scales[REWARD_S] = pipelined.scale_s
    rules = [pipeline.microbatches, pipeline.name == GPIPE, pipeline.splits_backward]
    return PieceArrays(
        op_ptr=members.ptr,
        op_item=members.items,
        first_op=forward[first],
        seconds=seconds,
        seconds_from=np.ascontiguousarray(later),
        resident=chain.resident_bytes,
        held_ptr=np.searchsorted(held_by, np.arange(chain.n_pieces + 1)),
        held_from=held_from,
        held_bytes=held_bytes,
        alike=alike[which.reshape(-1)],
        slowness=known.slowness,
        scales=scales[[MEAN_OP_S, REWARD_S]],
        rules=np.array(rules, dtype=np.int64),
    )


def _held(chain: Chain) -> tuple[IntArray, IntArray, FloatArray]:
    """Finds what a device keeps of a microbatch from the forward pass until its backward pass.

    Where the device keeps other activations too, as readers that take no time or that are elsewhere may have
    them freed early, they are left out.

    Returns:
        Later and earlier piece of maker and reader, and bytes of each activation; ascending by the former.
    """
    problem, piece = chain.problem, chain.piece_of
    graph, phase = problem.graph, phases_of(problem.graph)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    maker, reader = graph.tensor_producer[tensor], graph.consumers.items
    takes_time = problem.op_seconds.min(axis=1) > 0
    kept = (phase[maker] == 0) & (phase[reader] == 1) & takes_time[reader] & (graph.tensor_owner[tensor] < 0)
    tensor, one, other = tensor[kept], piece[maker[kept]], piece[reader[kept]]
    low, high = np.minimum(one, other), np.maximum(one, other)
    by_width = np.lexsort((high - low, tensor))
    _, nearest = np.unique(tensor[by_width], return_index=True)
    chosen = by_width[nearest]
    chosen = chosen[np.argsort(high[chosen], kind="stable")]
    return high[chosen], low[chosen], graph.tensor_bytes[tensor[chosen]].astype(np.float64)


@lru_cache(maxsize=256)
def rank_agenda(pipeline: Pipeline, n_stages: int) -> RankAgenda:
    """Lists the actions of so many stages, one on each device.

    Raises:
        PipelineError: the schedule does not exist for so many.
    """
    of_rank = device_actions(pipeline, n_stages)
    entries = [(each.stage * N_KINDS + each.kind, each.microbatch) for rank in of_rank for each in rank]
    flat = np.array(entries, dtype=np.int64)
    ptr = np.cumsum([0, *(len(rank) for rank in of_rank)])
    return RankAgenda(ptr, flat[:, 0].copy(), flat[:, 1].copy())


def new_pipeline_episodes(problems: Sequence[PipelinedProblem], n: int) -> PipelineEpisode:
    """Allocates `n` episodes over any of the problems: a row for each in every array."""
    max_ops = max(each.problem.graph.n_ops for each in problems)
    n_devices = max(each.problem.n_devices for each in problems)
    return PipelineEpisode(
        device_of=np.zeros((n, max_ops), np.int64),
        stage_of=np.zeros((n, max_ops), np.int64),
        devices=np.zeros((n, n_devices), np.int64),
        first=np.zeros((n, n_devices), np.int64),
        load_s=np.zeros((n, n_devices)),
        resident=np.zeros((n, n_devices)),
        held=np.zeros((n, n_devices)),
        state=np.zeros((n, 3), np.int64),
        time_s=np.zeros((n, 1)),
        candidate_s=np.zeros((n, n_devices)),
    )


def pipeline_episode(rows: PipelineEpisode, episode: int, problem: Problem) -> PipelineEpisode:
    """Returns views of one of many episodes, cut to its problem's size."""
    n_ops, n = problem.graph.n_ops, problem.n_devices
    sizes = (n_ops, n_ops, n, n, n, n, n, 3, 1, n)
    views: Iterator[Any] = (row[episode, :size] for row, size in zip(rows, sizes, strict=True))
    return PipelineEpisode(*views)


def begin_pipeline(episode: PipelineEpisode) -> None:
    """Begins an episode with nothing placed."""
    for array in episode:
        array[:] = 0
    for array in (episode.device_of, episode.stage_of, episode.devices, episode.candidate_s):
        array[:] = -1
    episode.state[LAST_ACTION] = -1
