"""Recomputation: stages whose forward ops run again before each backward action.

Every forward op has a second run, an op of its own behind all others, which takes part where a backward op of
its stage needs it, directly or through other second runs.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import BACKWARD_PHASE, RECOMPUTED_PHASE, PipelineArrays, SecondRuns
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel


def second_runs(p: ProblemArrays, q: PipelineArrays) -> tuple[ProblemArrays, PipelineArrays, SecondRuns]:
    """Adds a second run of each forward op to the arrays of a problem, except to what ops read."""
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
        near=np.concatenate([q.near, q.near[again]]),
    )
    return p, q, SecondRuns(np.concatenate([np.arange(len(op)), again]), op, tensor)


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


@kernel
def is_needed(p, q, runs, stage_of, list_of, op):
    """Says whether a backward op or a second run of its stage reads what a forward op makes.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        stage_of: stage of each first run, int64 (n_first_ops,).
        list_of: list of each later op of the stage, -1 for second runs that take no part, int32 (n_ops,).
        op: index of a forward op, int.

    Returns:
        bool.
    """
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            again = reader if q.phase[reader] == BACKWARD_PHASE else runs.op[reader]
            if again >= 0 and stage_of[reader] == stage_of[op] and list_of[again] >= 0:
                return True
    return False
