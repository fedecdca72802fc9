"""Kernels that make the programs of actions: ops that run without a wait between become one step.

A device runs the ops of an action in program order, so only tensors from other devices make it wait. The
times of a program are therefore sums that hold for every microbatch; what differs is when tensors arrive.
The first microbatch has sums of its own, as it adds no gradients.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `device_of` the device of each op, and
`stage_of` the stage of each op, int64 (n_ops,) both. Action `stage * N_KINDS + kind` is that of a stage, and
the updates of device `d` are action `n_stages * N_KINDS + d`.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import (
    BACKWARD_PHASE,
    FIRST,
    LATER,
    N_KINDS,
    OPTIMIZER_PHASE,
    RECEIVE,
    RECEIVE_ONCE,
    RECOMPUTED_PHASE,
    RUN,
    SEND,
    ActionSteps,
)
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from graphs.system.jit import kernel


@kernel
def find_actions(p, q, device_of, stage_of, n_stages, splits, action_of):
    """Finds the action of each op.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        stage_of: stage of each op, int64 (n_ops,).
        n_stages: int.
        splits: whether the backward pass is split into what other stages wait for, and the rest, bool.
        action_of: action of each op, -1 for sources and where there is no stage, int64 (n_ops,); written.
    """
    for op in range(len(device_of) - 1, -1, -1):
        phase = q.phase[op]
        if phase < 0 or device_of[op] < 0:
            action_of[op] = -1
        elif phase == OPTIMIZER_PHASE:
            action_of[op] = n_stages * N_KINDS + device_of[op]
        elif phase == BACKWARD_PHASE:
            waited = not splits or is_waited_for(p, q, stage_of, action_of, op)
            action_of[op] = stage_of[op] * N_KINDS + (BACKWARD if waited else WEIGHT)
        else:
            action_of[op] = stage_of[op] * N_KINDS + (RECOMPUTE if phase == RECOMPUTED_PHASE else FORWARD)


@kernel
def is_waited_for(p, q, stage_of, action_of, op):
    """Says whether another stage reads what a backward op makes, or what follows from it in its own stage.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        stage_of: stage of each op, int64 (n_ops,).
        action_of: action of each later op, int64 (n_ops,).
        op: index, int.

    Returns:
        bool.
    """
    for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
        tensor = p.output_item[k]
        for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
            reader = p.consumer_item[j]
            if q.phase[reader] != BACKWARD_PHASE:
                continue
            if stage_of[reader] != stage_of[op] or action_of[reader] % N_KINDS == BACKWARD:
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
            if device_of[reader] == home:
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
def sort_by_action(action_of, n_actions):
    """Sorts the ops by action, in program order within each.

    Args:
        action_of: action of each op, -1 for sources, int64 (n_ops,).
        n_actions: int.

    Returns:
        First position of each action, int64 (n_actions + 1,), and the ops, int64 (n_ops,).
    """
    ptr = np.zeros(n_actions + 1, np.int64)
    for action in action_of:
        if action >= 0:
            ptr[action + 1] += 1
    for action in range(n_actions):
        ptr[action + 1] += ptr[action]
    at, ops = ptr.copy(), np.empty(len(action_of), np.int64)
    for op in range(len(action_of)):
        if action_of[op] >= 0:
            ops[at[action_of[op]]] = op
            at[action_of[op]] += 1
    return ptr, ops


@kernel(allocates=True)
def make_programs(p, q, device_of, layout, devices):
    """Makes the programs of all actions.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        layout: `ActionLayout`; `slot_of` is written.
        devices: device of each action, int64 (n_actions,).

    Returns:
        `ActionSteps`, and the number of slots.
    """
    n_actions, ops = len(devices), layout.ops
    out = new_programs(n_actions, len(p.input_item) + 2 * len(ops) + 2 * len(p.producer))
    seen = np.full(len(layout.slot_of), -1, np.int64)
    n = n_slots = 0
    out.ptr[0] = 0
    for action in range(n_actions):
        begin, device = n, devices[action]
        for at in range(layout.action_ptr[action], layout.action_ptr[action + 1]):
            op = ops[at]
            for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
                tensor = p.input_item[k]
                source = device_of[p.producer[tensor]]
                if source == device:
                    continue
                is_sum = q.is_gradient[tensor] and q.phase[op] == OPTIMIZER_PHASE
                row = layout.sum_row_of[tensor] if is_sum else layout.row_of[tensor]
                if seen[row] == action:
                    continue
                seen[row] = action
                if layout.slot_of[row, device] < 0:
                    layout.slot_of[row, device] = n_slots
                    n_slots += 1
                out.code[n] = RECEIVE_ONCE if q.is_parameter[p.producer[tensor]] else RECEIVE
                out.row[n], out.slot[n], out.source[n] = row, layout.slot_of[row, device], source
                size = p.size[tensor] + p.n_half[source, device]
                out.seconds[n, FIRST] = size / p.bandwidth[source, device]
                n += 1
            n = add_op(p, out, begin, n, p.op_seconds[op, device])
            for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
                if layout.row_of[p.output_item[k]] >= 0:
                    n = add_send(out, begin, n, layout.row_of[p.output_item[k]])
            for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
                tensor = p.output_item[k]
                if q.is_gradient[tensor]:
                    n = begin_run(out, begin, n)
                    run(p, out, n - 1, LATER, q.accumulate_s[tensor, device])
                    if layout.sum_row_of[tensor] >= 0:
                        n = add_send(out, begin, n, layout.sum_row_of[tensor])
        out.ptr[action + 1] = n
    return out, n_slots


@kernel(allocates=True)
def new_programs(n_actions, n_steps):
    """Allocates programs.

    Args:
        n_actions: int.
        n_steps: steps of all programs, at most, int.

    Returns:
        `ActionSteps`; nothing is set.
    """
    numbers, pairs = np.empty((3, n_steps), np.int32), np.empty((3, n_steps, 2))
    return ActionSteps(
        np.empty(n_actions + 1, np.int64),
        np.empty(n_steps, np.int8),
        numbers[0],
        numbers[1],
        numbers[2],
        np.empty((n_steps, 2), np.int32),
        pairs[0],
        pairs[1],
        pairs[2],
    )


@kernel
def add_op(p, out, begin, n, seconds):
    """Adds an op to a program, to the step before where that runs ops too.

    Args:
        p: `ProblemArrays`.
        out: `ActionSteps`; written.
        begin, n: first step of the program and number of steps so far, int.
        seconds: of the op.

    Returns:
        Number of steps.
    """
    n = begin_run(out, begin, n)
    run(p, out, n - 1, FIRST, seconds)
    run(p, out, n - 1, LATER, seconds)
    return n


@kernel
def begin_run(out, begin, n):
    """Makes the last step of a program one that runs ops.

    Args:
        out: `ActionSteps`; written.
        begin, n: first step of the program and number of steps so far, int.

    Returns:
        Number of steps.
    """
    if n > begin and out.code[n - 1] == RUN:
        return n
    out.code[n] = RUN
    for column in range(2):
        out.seconds[n, column] = 0.0
        out.rest_s[n, column] = last_rest_s(out, begin, n, column)
        out.issue_s[n, column] = -np.inf
        out.issued[n, column] = 0
    return n + 1


@kernel
def run(p, out, step, column, seconds):
    """Adds an op to a step that runs ops.

    Args:
        p: `ProblemArrays`.
        out: `ActionSteps`; written.
        step: index, int.
        column: `FIRST` or `LATER`.
        seconds: of the op.
    """
    if seconds > 0.0:
        issued = p.gaps[ISSUE_S] + out.issued[step, column] * p.gaps[NEXT_ISSUE_S]
        out.issue_s[step, column] = max(out.issue_s[step, column], issued) + seconds + p.gaps[OP_GAP_S]
        out.seconds[step, column] += seconds + p.gaps[OP_GAP_S]
        out.rest_s[step, column] = p.gaps[OP_GAP_S]
        out.issued[step, column] += 1
    else:
        out.rest_s[step, column] = 0.0


@kernel
def last_rest_s(out, begin, n, column):
    """Finds how long the device rests after the ops before a step, which end that much before it is free.

    Args:
        out: `ActionSteps`.
        begin, n: first step of the program, and the step, int.
        column: `FIRST` or `LATER`.

    Returns:
        Seconds; 0 after a wait.
    """
    last = n - 1
    while last > begin and out.code[last] == SEND:
        last -= 1
    return out.rest_s[last, column] if last >= begin and out.code[last] == RUN else 0.0


@kernel
def add_send(out, begin, n, row):
    """Notes in a program that a tensor is ready.

    Args:
        out: `ActionSteps`; written.
        begin, n: first step of the program and number of steps so far, int.
        row: of the tensor, int.

    Returns:
        Number of steps.
    """
    out.code[n] = SEND
    out.row[n] = row
    for column in range(2):
        out.rest_s[n, column] = last_rest_s(out, begin, n, column)
    return n + 1
