"""Recomputation: stages whose forward ops run again before each backward action.

Every forward op has a second run, an op of its own behind all others, which takes part where a backward op of
its stage needs it, directly or through other second runs. So what follows knows nothing of recomputation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from envs.pipeline.arrays import BACKWARD_PHASE, RECOMPUTED_PHASE, PipelineArrays
from envs.pipeline.stages import Stages
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel


class SecondRuns(NamedTuple):
    """The arrays of a graph with second runs, without what they read, and which they are."""

    p: ProblemArrays
    q: PipelineArrays
    first: IntArray  # (n_ops,) first run of an op; the op itself for all others
    op: IntArray  # (n_first_ops,) second run of an op, -1 = none
    tensor: IntArray  # (n_first_tensors,) second tensor of a tensor, -1 = none


def second_runs(p: ProblemArrays, q: PipelineArrays) -> SecondRuns:
    """Adds a second run of each forward op to the arrays of a problem."""
    again = np.flatnonzero(q.phase == 0)
    made = np.flatnonzero(q.phase[p.producer] == 0)
    op, tensor = (_numbers(n, of) for n, of in ((len(q.phase), again), (len(p.producer), made)))
    outputs = np.diff(p.output_ptr)
    nothing = np.zeros(len(again), dtype=np.int64)
    p = p._replace(
        op_seconds=np.concatenate([p.op_seconds, p.op_seconds[again]]),
        is_source=np.concatenate([p.is_source, nothing]),
        output_ptr=np.concatenate([[0], np.concatenate([outputs, outputs[again]]).cumsum()]),
        output_item=np.concatenate([p.output_item, _second(p, again, tensor)]),
        producer=np.concatenate([p.producer, op[p.producer[made]]]),
        size=np.concatenate([p.size, p.size[made]]),
        owner=np.concatenate([p.owner, np.full(len(made), -1)]),
        resident=np.concatenate([p.resident, np.zeros(len(again))]),
    )
    q = PipelineArrays(
        phase=np.concatenate([q.phase, np.full(len(again), RECOMPUTED_PHASE)]),
        is_parameter=np.concatenate([q.is_parameter, nothing]),
        is_gradient=np.concatenate([q.is_gradient, np.zeros(len(made), dtype=np.int64)]),
        accumulate_s=np.concatenate([q.accumulate_s, np.zeros((len(made), q.accumulate_s.shape[1]))]),
    )
    return SecondRuns(p, q, np.concatenate([np.arange(len(op)), again]), op, tensor)


def _numbers(n: int, chosen: IntArray) -> IntArray:
    """Numbers some of `n` from `n` on; -1 for the others."""
    found = np.full(n, -1, dtype=np.int64)
    found[chosen] = n + np.arange(len(chosen))
    return found


def _second(p: ProblemArrays, again: IntArray, tensor: IntArray) -> IntArray:
    """Second tensors of ops, op by op."""
    rows = [p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]] for op in again.tolist()]
    found: IntArray = tensor[np.concatenate([*rows, np.zeros(0, dtype=np.int64)])]
    return found


def with_second_runs(runs: SecondRuns, stages: Stages) -> tuple[ProblemArrays, PipelineArrays, Stages]:
    """Makes the arrays and the stages of a placement with what its recomputed stages run again."""
    is_recomputed = np.zeros(len(stages.devices), dtype=np.int64)
    is_recomputed[list(stages.recomputed)] = 1
    found = connect(runs.p, runs.q, runs, stages.device_of, stages.stage_of, is_recomputed)
    device_of, stage_of, input_ptr, input_item, consumer_ptr, consumer_item = found
    p = runs.p._replace(
        input_ptr=input_ptr, input_item=input_item, consumer_ptr=consumer_ptr, consumer_item=consumer_item
    )
    return p, runs.q, replace(stages, device_of=device_of, stage_of=stage_of)


@kernel(entry=True, allocates=True)
def connect(p, q, runs, device_of, stage_of, is_recomputed):
    """Finds the second runs that take part, and what all ops read.

    Args:
        p: `ProblemArrays` of `runs`.
        q: `PipelineArrays` of `runs`.
        runs: `SecondRuns`.
        device_of: device of each first run, int64 (n_first_ops,).
        stage_of: stage of each first run, int64 (n_first_ops,).
        is_recomputed: 1 for stages that are, int64 (n_stages,).

    Returns:
        Device and stage of each op, -1 for second runs that take no part, int64 (n_ops,); `input_ptr`,
        `input_item`, `consumer_ptr` and `consumer_item` of `ProblemArrays`.
    """
    n_first, n_ops = len(stage_of), len(q.phase)
    device, stage = np.full(n_ops, -1), np.full(n_ops, -1)
    device[:n_first], stage[:n_first] = device_of, stage_of
    for op in range(n_first - 1, -1, -1):
        if runs.op[op] >= 0 and is_recomputed[stage[op]] and is_needed(p, q, runs, stage, op):
            device[runs.op[op]], stage[runs.op[op]] = device[op], stage[op]
    input_ptr, input_item = np.zeros(n_ops + 1, np.int64), np.empty(2 * len(p.input_item), np.int64)
    consumer_ptr, consumer_item = np.zeros(len(p.producer) + 1, np.int64), np.empty_like(input_item)
    n = 0
    for op in range(n_ops):
        if op < n_first or stage[op] >= 0:
            reads_again = op >= n_first or q.phase[op] == BACKWARD_PHASE
            for k in range(p.input_ptr[runs.first[op]], p.input_ptr[runs.first[op] + 1]):
                tensor = p.input_item[k]
                second = runs.op[p.producer[tensor]]
                if reads_again and second >= 0 and stage[second] == stage[op]:
                    tensor = runs.tensor[tensor]
                input_item[n] = tensor
                consumer_ptr[tensor + 1] += 1
                n += 1
        input_ptr[op + 1] = n
    for tensor in range(len(p.producer)):
        consumer_ptr[tensor + 1] += consumer_ptr[tensor]
    at = consumer_ptr.copy()
    for op in range(n_ops):
        for k in range(input_ptr[op], input_ptr[op + 1]):
            consumer_item[at[input_item[k]]] = op
            at[input_item[k]] += 1
    return device, stage, input_ptr, input_item, consumer_ptr, consumer_item


@kernel
def is_needed(p, q, runs, stage, op):
    """Says whether a backward op or a second run of its stage reads what a forward op makes.

    Args:
        p: `ProblemArrays` of `runs`, of which the readers of first runs are read.
        q: `PipelineArrays` of `runs`.
        runs: `SecondRuns`.
        stage: stage of each op; -1 for second runs that take no part, int64 (n_ops,).
        op: index of a forward op, int.

    Returns:
        bool.
    """
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            again = reader if q.phase[reader] == BACKWARD_PHASE else runs.op[reader]
            if again >= 0 and stage[again] == stage[op]:
                return True
    return False
