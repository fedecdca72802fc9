"""Kernels that add the steps of a program: ops that run, and tensors that are ready to be sent.

In all kernels here `p` is a `ProblemArrays`, and `out` the `Parts` whose programs are made.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import FIRST, LATER, RUN, SEND
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from graphs.system.jit import kernel


@kernel
def add_ops(p, out, begin, n, place, stop, device):
    """Adds ops to a program, to the step before where that runs ops too.

    Args:
        p: `ProblemArrays`.
        out: `Parts`; written.
        begin, n: first step of the program and number of steps so far, int.
        place, stop: places of the first op, and behind the last one, int.
        device: index, int.

    Returns:
        Number of steps.
    """
    n = begin_run(out, begin, n)
    first_s, later_s = out.seconds[n - 1, FIRST], out.seconds[n - 1, LATER]
    for at in range(place, stop):
        seconds = p.op_seconds[out.op[at], device]
        if seconds > 0.0:
            first_s += seconds + p.gaps[OP_GAP_S]
            later_s += seconds + p.gaps[OP_GAP_S]
            if p.detailed is not None:
                issue(p, out, n - 1, FIRST, seconds)
                issue(p, out, n - 1, LATER, seconds)
    out.seconds[n - 1, FIRST], out.seconds[n - 1, LATER] = first_s, later_s
    out.rest_s[n - 1] = p.gaps[OP_GAP_S] if p.op_seconds[out.op[stop - 1], device] > 0.0 else 0.0
    return n


@kernel
def begin_run(out, begin, n):
    """Makes the last step of a program one that runs ops.

    Args:
        out: `Parts`; written.
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
def add_sum(p, out, step, seconds):
    """Adds the addition of a gradient, which the first microbatch does not run, to a step that runs ops.

    Args:
        p: `ProblemArrays`.
        out: `Parts`; written.
        step: index, int.
        seconds: of the addition.
    """
    out.rest_s[step, LATER] = p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0
    if seconds > 0.0:
        out.seconds[step, LATER] += seconds + p.gaps[OP_GAP_S]
        issue(p, out, step, LATER, seconds)


@kernel
def issue(p, out, step, column, seconds):
    """Counts an op that the host issues.

    Args:
        p: `ProblemArrays`.
        out: `Parts`; written.
        step: index, int.
        column: `FIRST` or `LATER`.
        seconds: of the op.
    """
    issued = p.gaps[ISSUE_S] + out.issued[step, column] * p.gaps[NEXT_ISSUE_S]
    out.issue_s[step, column] = max(out.issue_s[step, column], issued) + seconds + p.gaps[OP_GAP_S]
    out.issued[step, column] += 1


@kernel
def last_rest_s(out, begin, n, column):
    """Finds how long the device rests after the ops before a step, which end that much before it is free.

    Args:
        out: `Parts`.
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
        out: `Parts`; written.
        begin, n: first step of the program and number of steps so far, int.
        row: of the tensor, from 0 in its part, int.

    Returns:
        Number of steps.
    """
    out.code[n] = SEND
    out.number[n] = row
    for column in range(2):
        out.rest_s[n, column] = last_rest_s(out, begin, n, column)
    return n + 1
