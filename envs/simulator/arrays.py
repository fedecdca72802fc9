"""What the simulator's loops read and fill in, as flat arrays.

A *problem* (`ProblemArrays`) is a graph on a cluster, a *timeline* (`Timeline`) what a simulation fills in.
An op whose device is -1 is absent: it does not run, and what it would produce is not waited for. A tensor `t`
at device `d` has the slot `t * n_devices + d`; the slot of the producer's own device holds the end of the one
transfer that serves all devices, where the cluster sends per tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.simulator.jit import kernel
from graphs.op_graph import FloatArray, IntArray

PROGRAM, FIFO = 0, 1


class ProblemArrays(NamedTuple):
    """A graph on a cluster, as the kernels read it. Rows of `x` are `x_item[x_ptr[i]:x_ptr[i + 1]]`."""

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
    gaps: FloatArray  # (2,) rest after an op, rest of a link after a transfer; s
    rules: IntArray  # (3,) schedule, 1 = one transfer per tensor, number of links


class Timeline(NamedTuple):
    """What one simulation fills in; seconds from the start of the step, -1 where nothing was sent."""

    start: FloatArray  # (n_ops,)
    finish: FloatArray  # (n_ops,)
    sent: FloatArray  # (n_tensors * n_devices,) end of the transfer of a tensor to a device
    arrival: FloatArray  # (n_tensors * n_devices,)
    device_free: FloatArray  # (n_devices,)
    link_free: FloatArray  # (n_devices ** 2,)


@kernel(entry=True, allocates=True)
def new_timeline(n_ops, n_tensors, n_devices):
    """An empty timeline, all slots unsent."""
    return Timeline(
        np.zeros(n_ops),
        np.zeros(n_ops),
        np.full(n_tensors * n_devices, -1.0),
        np.full(n_tensors * n_devices, -1.0),
        np.zeros(n_devices),
        np.zeros(n_devices * n_devices),
    )


@kernel
def copy(source, target):
    """Copy one array over another; a slice assignment would allocate, for the case that they overlap."""
    for i in range(len(source)):
        target[i] = source[i]


@kernel
def clear(timeline):
    """Forget a simulation; `start` and `finish` are overwritten by the next one where they are read."""
    timeline.sent[:] = -1.0
    timeline.arrival[:] = -1.0
    timeline.device_free[:] = 0.0
    timeline.link_free[:] = 0.0


@kernel
def reserve(p, link_free, tensor, source, target, ready_s):
    """Occupy the link for one transfer; returns when the transfer ends."""
    link = p.link[source, target]
    rate = p.bandwidth[source, source] if p.rules[1] else p.bandwidth[source, target]
    if link < 0:
        return ready_s + p.size[tensor] / rate
    end = max(ready_s, link_free[link]) + p.size[tensor] / rate
    link_free[link] = end + p.gaps[1]
    return end


@kernel
def run_op(p, timeline, op, device, ready_s):
    """Run `op` on `device` as soon as both are ready; returns its finish."""
    start = max(ready_s, timeline.device_free[device])
    seconds = p.op_seconds[op, device]
    finish = start + seconds
    timeline.start[op] = start
    timeline.finish[op] = finish
    timeline.device_free[device] = finish + p.gaps[0] if seconds > 0.0 else finish
    return finish
