"""Kernels that lay out the ops of a pipeline by action, and number the tensors that cross devices.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `device_of` the device of each op (the
first one of its stage), and `stage_of` the stage of each op, int64 (n_ops,) both. List
`stage * N_KINDS + kind` has the ops of a kind of action of a stage, and list `n_stages * N_KINDS + d` the
updates of device `d`. An op on device -1 is unplaced: it does not run, and its outputs are there from time 0;
gradients are added up even if their update is unplaced.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import (
    BACKWARD_PHASE,
    N_KINDS,
    OPTIMIZER_PHASE,
    RECOMPUTED_PHASE,
    UNSET,
    ActionLayout,
    Replicas,
)
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT
from graphs.system.jit import kernel


@kernel(entry=True, allocates=True)
def make_layout(p, q, device_of, stage_of, replicas, splits):
    """Lays out the ops and the tensors of a placement.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        stage_of: stage of each forward and backward op, int64 (n_ops,).
        replicas: `Replicas`.
        splits: whether each stage computes gradients of weights in actions of their own, bool (n_stages,).

    Returns:
        `ActionLayout`; no slot is set.
    """
    n_devices, n_replicas = len(p.memory), len(replicas.stage)
    n_stages = replicas.stage[n_replicas - 1] + 1
    list_of = np.empty(len(device_of), np.int64)
    find_lists(p, q, device_of, stage_of, n_stages, splits, list_of)
    row_of = np.empty(len(p.producer), np.int32)
    sum_row_of = np.empty(len(p.producer), np.int32)
    n_rows = find_rows(p, q, device_of, row_of, sum_row_of)
    ptr, ops = sort_by_list(list_of, n_stages * N_KINDS + n_devices)
    n_actions = n_replicas * N_KINDS + n_devices
    device, action_list = np.empty(n_actions, np.int64), np.empty(n_actions, np.int64)
    for action in range(n_actions):
        replica, kind = divmod(action, N_KINDS)
        if replica < n_replicas:
            device[action] = replicas.device[replica]
            action_list[action] = replicas.stage[replica] * N_KINDS + kind
        else:
            device[action] = action - n_replicas * N_KINDS
            action_list[action] = n_stages * N_KINDS + replicas.head[device[action]]
    slot_of = np.full((n_rows, n_devices), -1, np.int32)
    return ActionLayout(device, action_list, ptr, ops, row_of, sum_row_of, slot_of)


@kernel(allocates=True)
def one_each(devices, n_devices):
    """Makes the `Replicas` of stages with one device each.

    Args:
        devices: device of each stage, int64 (n_stages,).
        n_devices: int.
    """
    own = np.arange(n_devices)
    number, n_replicas = np.zeros(n_devices, np.int64), np.ones(n_devices, np.int64)
    member, reduce_s = own.copy().reshape((n_devices, 1)), np.full(n_devices, UNSET)
    return Replicas(np.arange(len(devices)), devices, own, number, n_replicas, member, reduce_s)


@kernel
def find_lists(p, q, device_of, stage_of, n_stages, splits, list_of):
    """Finds the list of each op.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        stage_of: stage of each op, int64 (n_ops,).
        n_stages: int.
        splits: whether each stage splits its backward pass into what others wait for and the rest, bool
            (n_stages,).
        list_of: list of each op, -1 for sources and unplaced ops, int64 (n_ops,); written.
    """
    for op in range(len(device_of) - 1, -1, -1):
        phase = q.phase[op]
        if phase < 0 or device_of[op] < 0:
            list_of[op] = -1
        elif phase == OPTIMIZER_PHASE:
            list_of[op] = n_stages * N_KINDS + device_of[op]
        elif phase == BACKWARD_PHASE:
            waited = not splits[stage_of[op]] or is_waited_for(p, q, stage_of, list_of, op)
            list_of[op] = stage_of[op] * N_KINDS + (BACKWARD if waited else WEIGHT)
        else:
            list_of[op] = stage_of[op] * N_KINDS + (RECOMPUTE if phase == RECOMPUTED_PHASE else FORWARD)


@kernel
def is_waited_for(p, q, stage_of, list_of, op):
    """Says whether another stage reads what a backward op makes, or what follows from it in its own stage.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        stage_of: stage of each op, int64 (n_ops,).
        list_of: list of each later op, int64 (n_ops,).
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
            if stage_of[reader] != stage_of[op] or list_of[reader] % N_KINDS == BACKWARD:
                return True
    return False


@kernel
def find_rows(p, q, device_of, row_of, sum_row_of):
    """Numbers the tensors that other devices read: their rows in the table of times.

    The sum of a gradient has another row than the gradient of a microbatch.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        row_of: row of each tensor, -1 = no other device reads it, int32 (n_tensors,); written.
        sum_row_of: row of its sum over microbatches, int32 (n_tensors,); written.

    Returns:
        Number of rows.
    """
    n = 0
    for tensor in range(len(p.producer)):
        row_of[tensor] = sum_row_of[tensor] = -1
        home = device_of[p.producer[tensor]]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            if device_of[reader] == home or device_of[reader] < 0 or home < 0:
                continue
            if q.is_gradient[tensor] and q.phase[reader] == OPTIMIZER_PHASE:
                if sum_row_of[tensor] < 0:
                    sum_row_of[tensor] = n
                    n += 1
            elif row_of[tensor] < 0:
                row_of[tensor] = n
                n += 1
    return n


@kernel(allocates=True)
def sort_by_list(list_of, n_lists):
    """Sorts the ops by list, in program order within each.

    Args:
        list_of: list of each op, -1 = in none, int64 (n_ops,).
        n_lists: int.

    Returns:
        First position of each list, int64 (n_lists + 1,), and the ops, int64 (n_ops,).
    """
    ptr = np.zeros(n_lists + 1, np.int64)
    for each in list_of:
        if each >= 0:
            ptr[each + 1] += 1
    for each in range(n_lists):
        ptr[each + 1] += ptr[each]
    at, ops = ptr.copy(), np.empty(len(list_of), np.int64)
    for op in range(len(list_of)):
        if list_of[op] >= 0:
            ops[at[list_of[op]]] = op
            at[list_of[op]] += 1
    return ptr, ops
