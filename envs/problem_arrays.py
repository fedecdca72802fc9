"""The flat arrays of a graph on a cluster, and the columns of those that pack several numbers."""

from __future__ import annotations

from typing import NamedTuple

from graphs.op_graph import FloatArray, IntArray

OP_GAP_S, TRANSFER_GAP_S = range(2)
"""Columns of `ProblemArrays.gaps`: rest of a device after an op, rest of a link after a transfer."""

SCHEDULE, SENDS_PER_TENSOR, N_LINKS = range(3)
"""Columns of `ProblemArrays.rules`: `PROGRAM` or `FIFO`, 1 = one transfer per tensor, number of links."""

PROGRAM, FIFO = range(2)
"""Schedules: ops in program order, or whatever became ready first."""


class ProblemArrays(NamedTuple):
    """A graph on a cluster, as the kernels read it.

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
    link: IntArray  # (n_devices, n_devices) link of an ordered pair, -1 = a link of its own per transfer
    memory: FloatArray  # (n_devices,) bytes
    gaps: FloatArray  # (2,) seconds; columns `OP_GAP_S`, `TRANSFER_GAP_S`
    rules: IntArray  # (3,) columns `SCHEDULE`, `SENDS_PER_TENSOR`, `N_LINKS`
