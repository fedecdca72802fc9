"""Kernels that lay out the ops of a pipeline by device and list.

A device has a list of ops for each kind of action of each of its stages, in the order in which it runs them
in each microbatch, one for its updates, and one for its parameters and inputs, which do not run.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `runs` a `SecondRuns`, `placed` a
`PlacedStages` and `agenda` an `Agenda`. `op` is an index, int, and `stage_of` the stage of each op, int64
(n_first_ops,).
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import BACKWARD_PHASE, N_KINDS, OPTIMIZER_PHASE, OpLists
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT
from graphs.system.jit import kernel


@kernel(allocates=True)
def make_layout(p, q, runs, placed, agenda, list_of):
    """Lays out the ops of all devices.

    Args:
        list_of: -1, int32 (n_ops,); written: list of each op that takes part.
    """
    stage_of, updates = placed.stage_of, N_KINDS * len(placed.device)
    sources = updates + len(p.memory)
    for op in range(len(stage_of) - 1, -1, -1):
        device, phase, stage = placed.device_of[op], q.phase[op], stage_of[op]
        action = N_KINDS * stage + FORWARD
        if phase < 0:
            action = sources + device
        elif phase == OPTIMIZER_PHASE:
            action = updates + device
        elif phase == BACKWARD_PHASE:
            backward = N_KINDS * stage + BACKWARD
            is_first = not placed.splits_backward or is_waited_for(
                p, q, stage_of, list_of, agenda.list_of[backward], op
            )
            action = backward if is_first else N_KINDS * stage + WEIGHT
        elif placed.recomputed[stage] and is_needed(p, q, runs, stage_of, list_of, op):
            list_of[runs.op[op]] = agenda.list_of[N_KINDS * stage + RECOMPUTE]
        list_of[op] = agenda.list_of[action]
    ptr = np.zeros(len(agenda.list_of) + 1, np.int64)
    for list_ in list_of:
        if list_ >= 0:
            ptr[list_ + 1] += 1
    ptr = ptr.cumsum()
    end, ops = ptr.copy(), np.empty(ptr[-1], np.int64)
    for op in range(len(list_of)):
        if list_of[op] >= 0:
            ops[end[list_of[op]]] = op
            end[list_of[op]] += 1
    return OpLists(ptr, ops, list_of)


@kernel
def is_waited_for(p, q, stage_of, list_of, backward, op):
    """Says whether another stage reads what a backward op makes, or what follows from it in its own stage.

    Args:
        list_of: list of each later op of the stage, int32 (n_ops,).
        backward: list of those ops of the stage that are waited for, int.
    """
    for tensor in p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]:
        for reader in p.consumer_item[p.consumer_ptr[tensor] : p.consumer_ptr[tensor + 1]]:
            is_elsewhere = stage_of[reader] != stage_of[op]
            if q.phase[reader] == BACKWARD_PHASE and (is_elsewhere or list_of[reader] == backward):
                return True
    return False


@kernel
def is_needed(p, q, runs, stage_of, list_of, op):
    """Says whether a backward op or a second run of its stage reads what a forward op makes.

    Args:
        list_of: list of each later op of the stage, -1 for second runs that take no part, int32 (n_ops,).
    """
    for tensor in p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]:
        for reader in p.consumer_item[p.consumer_ptr[tensor] : p.consumer_ptr[tensor + 1]]:
            again = reader if q.phase[reader] == BACKWARD_PHASE else runs.op[reader]
            if again >= 0 and stage_of[reader] == stage_of[op] and list_of[again] >= 0:
                return True
    return False
