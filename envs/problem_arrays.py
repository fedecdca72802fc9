"""The flat arrays of a graph on a cluster, and the columns of those that pack several numbers."""

from __future__ import annotations

from typing import NamedTuple

from graphs.system.array_types import FloatArray, IntArray

OP_GAP_S, TRANSFER_GAP_S, ISSUE_S, NEXT_ISSUE_S = range(4)
"""Columns of `ProblemArrays.gaps`: rest of a device after an op, rest of a link after a transfer, time from
when the host thread is free until it has issued an op or a copy, time until it can issue the next one."""

SCHEDULE, SENDS_PER_TENSOR, IS_EAGER, N_CLOCKS, OVERLAP_CLOCKS = range(5)
"""Columns of `ProblemArrays.rules`: `PROGRAM` or `FIFO`, 1 = one transfer per tensor, 1 = copies run on the
compute streams of both devices, number of clocks in use, first of those of copies beside ops (0 = none)."""

PROGRAM, FIFO = range(2)
"""Schedules: ops in program order, or whatever became ready first."""


class ProblemArrays(NamedTuple):
    """A graph on a cluster, as the kernels read it.

    A clock says when something is free: clock `d` device `d`, clock `n_devices` the host thread, and the
    clocks after it the links. Where copies slow ops, two clocks of each device follow, from `OVERLAP_CLOCKS`
    on: the end of the copies to and from each device, then by how much each device is late.

    Where `detailed` or `slows` is None, numba compiles the kernels without the rules that it stands for:
    with those of `detailed`, annealing is slower by 3 to 6 %. The times are the same to the last bit.

    Rows of `x` are `x_item[x_ptr[i]:x_ptr[i + 1]]`. Arrays are int64 or float64.
    """

    op_seconds: FloatArray  # (n_ops, n_devices)
    is_source: IntArray  # (n_ops,) 1 for parameters and inputs
    input_ptr: IntArray  # (n_ops + 1,) tensors an op reads, by producer
    input_item: IntArray
    output_ptr: IntArray  # (n_ops + 1,) tensors an op makes
    output_item: IntArray
    consumer_ptr: IntArray  # (n_tensors + 1,) ops that read a tensor, ascending
    consumer_item: IntArray
    producer: IntArray  # (n_tensors,)
    size: FloatArray  # (n_tensors,) bytes
    owner: IntArray  # (n_tensors,) op whose resident bytes hold the tensor, or -1
    resident: FloatArray  # (n_ops,) bytes
    bandwidth: FloatArray  # (n_devices, n_devices) bytes/s; the diagonal: the slowest of the row
    latency: FloatArray  # (n_devices, n_devices) s
    n_half: FloatArray  # (n_devices, n_devices) bytes added to each transfer; the diagonal: the row's most
    link: IntArray  # (n_devices, n_devices) clock of a pair's link, -1 = each transfer has its own
    memory: FloatArray  # (n_devices,) bytes
    slowdown: FloatArray  # (n_devices,) times as long that ops take while copies run
    gaps: FloatArray  # (4,) seconds; columns `OP_GAP_S`, `TRANSFER_GAP_S`, `ISSUE_S`, `NEXT_ISSUE_S`
    rules: IntArray  # (5,) columns `SCHEDULE`, `SENDS_PER_TENSOR`, `IS_EAGER`, `N_CLOCKS`, `OVERLAP_CLOCKS`
    detailed: IntArray | None  # (0,), or None where `ISSUE_S`, `IS_EAGER` and `n_half` are 0 and `slows` None
    slows: IntArray | None  # (0,), or None where no copy slows ops: `slowdown` is 1
