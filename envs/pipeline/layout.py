"""Kernels that lay out the ops of a pipeline by device and list.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, and `runs` a `SecondRuns`.

A device has a list of ops for each kind of action of each of its stages, in the order in which it runs them
in each microbatch, one for its updates, and one for its parameters and inputs, which do not run. An op on
device -1 is unplaced: it does not run either, and its outputs are there from time 0; gradients are added up
even if their update is unplaced.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import BACKWARD_PHASE, N_KINDS, OPTIMIZER_PHASE
from envs.pipeline.recompute import is_needed
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT
from graphs.system.jit import kernel


@kernel(entry=True)
def list_number(n_stages, stage, kind):
    """Numbers the lists of a device.

    Args:
        n_stages: stages of the device, int.
        stage: which of these, int.
        kind: of action, int.

    Returns:
        int; the updates have the number `N_KINDS * n_stages`, and parameters and inputs the next one.
    """
    return stage if kind == FORWARD else n_stages + 3 * (n_stages - 1 - stage) + kind % 3


@kernel
def stage_of_list(n_stages, each):
    """Returns which stage of a device a list belongs to, -1 = none; the inverse of `list_number`.

    Args:
        n_stages: stages of the device, int.
        each: number of the list, int.
    """
    return each if each < n_stages else (N_KINDS * n_stages - 1 - each) // 3


@kernel(allocates=True)
def number_stages(devices, n_devices):
    """Counts the stages of each device.

    Args:
        devices: device of each stage, int64 (n_stages,).
        n_devices: int.

    Returns:
        Which stage of its device each one is, int64 (n_stages,), and the stages of each device, int64
        (n_devices,).
    """
    local, n_stages = np.zeros(len(devices), np.int64), np.zeros(n_devices, np.int64)
    for stage in range(len(devices)):
        local[stage] = n_stages[devices[stage]]
        n_stages[devices[stage]] += 1
    return local, n_stages


@kernel(entry=True, allocates=True)
def make_layout(p, q, runs, placed, local, n_stages, is_chosen, splits):
    """Lays out the ops of some devices.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        placed: `PlacedStages`.
        local: which stage of its device each one is, int64 (n_stages,).
        n_stages: stages of each device, int64 (n_devices,).
        is_chosen: 1 for devices whose ops are laid out, int64 (n_devices,).
        splits: whether each stage computes gradients of weights in actions of their own, bool (n_stages,).

    Returns:
        First list of each device, int64 (n_devices + 1,); first position of each list, int64 (n_lists + 1,);
        and the ops by list, in program order within each, int64 (n_ops,).
    """
    first = np.zeros(len(n_stages) + 1, np.int64)
    for device in range(len(n_stages)):
        first[device + 1] = first[device] + is_chosen[device] * (N_KINDS * n_stages[device] + 2)
    list_of, stage_of = np.full(len(q.phase), -1, np.int32), placed.stage_of
    for op in range(len(stage_of) - 1, -1, -1):
        device, phase = placed.device_of[op], q.phase[op]
        if device < 0 or not is_chosen[device]:
            continue
        at, stage, n = first[device], stage_of[op], n_stages[device]
        if phase < 0 or phase == OPTIMIZER_PHASE:
            list_of[op] = at + N_KINDS * n + (phase < 0)
            continue
        kind = FORWARD
        if phase == BACKWARD_PHASE:
            backward = at + list_number(n, local[stage], BACKWARD)
            kind = BACKWARD
            if splits[stage] and not is_waited_for(p, q, stage_of, list_of, backward, op):
                kind = WEIGHT
        elif placed.recomputed[stage] and is_needed(p, q, runs, stage_of, list_of, op):
            list_of[runs.op[op]] = at + list_number(n, local[stage], RECOMPUTE)
        list_of[op] = at + list_number(n, local[stage], kind)
    ptr, ops = sort_by_list(list_of, first[-1])
    return first, ptr, ops


@kernel
def is_waited_for(p, q, stage_of, list_of, backward, op):
    """Says whether another stage reads what a backward op makes, or what follows from it in its own stage.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        stage_of: stage of each op, int64 (n_first_ops,).
        list_of: list of each later op of the stage, int32 (n_ops,).
        backward: list of those ops of the stage that are waited for, int.
        op: index, int.

    Returns:
        bool.
    """
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            if q.phase[reader] != BACKWARD_PHASE or stage_of[reader] < 0:
                continue
            if stage_of[reader] != stage_of[op] or list_of[reader] == backward:
                return True
    return False


@kernel(allocates=True)
def sort_by_list(list_of, n_lists):
    """Sorts the ops by list, in program order within each.

    Args:
        list_of: list of each op, -1 = in none, int32 (n_ops,).
        n_lists: int.

    Returns:
        First position of each list, int64 (n_lists + 1,), and the ops, int64 (n_ops,).
    """
    ptr, begin, n_ops = np.zeros(n_lists + 1, np.int64), 0, len(list_of)
    for op in range(1, n_ops + 1):
        if op == n_ops or list_of[op] != list_of[begin]:
            if list_of[begin] >= 0:
                ptr[list_of[begin] + 1] += op - begin
            begin = op
    for each in range(n_lists):
        ptr[each + 1] += ptr[each]
    at, ops, last, n = ptr.copy(), np.empty(ptr[-1], np.int64), -1, 0
    for op in range(n_ops):
        if list_of[op] >= 0:
            if list_of[op] != last:
                if last >= 0:
                    at[last] = n
                last = list_of[op]
                n = at[last]
            ops[n] = op
            n += 1
    return ptr, ops
