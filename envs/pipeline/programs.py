"""Kernels that make the programs of actions: ops that run without a wait between become one step.

A device runs the ops of an action in program order, so only tensors from other devices make it wait. The
times of a program are therefore sums that hold for every microbatch; what differs is when tensors arrive.
The first microbatch has sums of its own, as it adds no gradients. An action does not wait for what the
forward action of its stage and microbatch has received.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, and `device_of` the device of each op,
the first one of its stage, int64 (n_ops,). What ops on device -1 make is there from time 0.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import (
    ALL_REDUCE,
    FIRST,
    LATER,
    N_KINDS,
    OPTIMIZER_PHASE,
    RECEIVE,
    RECEIVE_ONCE,
    RECEIVE_SHARED,
    RECEIVE_SUM,
    RUN,
    SEND,
    ActionSteps,
)
from envs.pipeline.schedules import FORWARD
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from graphs.system.jit import kernel


@kernel(allocates=True)
def make_programs(p, q, device_of, layout, replicas, n_microbatches):
    """Makes the programs of all actions.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        layout: `ActionLayout`; `slot_of` is written.
        replicas: `Replicas`.
        n_microbatches: int.

    Returns:
        `ActionSteps`, and the number of slots.
    """
    n_actions, n_in_stages, ops = len(layout.device), len(replicas.stage) * N_KINDS, layout.ops
    n_most = len(p.input_item) + 2 * len(ops) + 2 * len(p.producer)
    out = new_programs(n_actions, replicas.n_replicas.max() * n_most + n_actions)
    seen = np.full(len(layout.slot_of), -1, np.int64)
    n = n_slots = 0
    out.ptr[0] = 0
    for action in range(n_actions):
        begin, device, each = n, layout.device[action], layout.list_of[action]
        home, is_update = replicas.head[device], action >= n_in_stages
        forward = action if is_update else action - action % N_KINDS + FORWARD
        if is_update and replicas.reduce_s[home] >= 0.0:
            out.code[n] = ALL_REDUCE
            n += 1
        sends = not is_update or (n_microbatches - 1) % replicas.n_replicas[home] == replicas.number[device]
        for at in range(layout.ptr[each], layout.ptr[each + 1]):
            op = ops[at]
            for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
                tensor = p.input_item[k]
                source = device_of[p.producer[tensor]]
                if source == home or source < 0:
                    continue
                is_sum = q.is_gradient[tensor] and q.phase[op] == OPTIMIZER_PHASE
                row = layout.sum_row_of[tensor] if is_sum else layout.row_of[tensor]
                if seen[row] == action or seen[row] == forward:
                    continue
                seen[row] = action
                if layout.slot_of[row, device] < 0:
                    layout.slot_of[row, device] = n_slots
                    n_slots += 1
                once, shared = q.is_parameter[p.producer[tensor]], replicas.n_replicas[source] > 1
                several = RECEIVE_SUM if is_sum else RECEIVE_SHARED
                out.code[n] = RECEIVE_ONCE if once else several if shared else RECEIVE
                out.row[n], out.slot[n], out.source[n] = row, layout.slot_of[row, device], source
                size = p.size[tensor] + p.n_half[source, device]
                out.seconds[n, FIRST] = size / p.bandwidth[source, device]
                out.seconds[n, LATER] = p.size[tensor]
                n += 1
            n = add_op(p, out, begin, n, p.op_seconds[op, device])
            for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
                if sends and layout.row_of[p.output_item[k]] >= 0:
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
