"""The time of each op on each device: measured where known, else by the roofline model."""

from __future__ import annotations

import numpy as np

from envs.cluster.cluster import Cluster, Device
from graphs.op_graph import FloatArray, OpGraph


class CostError(ValueError):
    """An op time that is not finite; the message names the op and the device."""


def op_seconds(graph: OpGraph, cluster: Cluster) -> FloatArray:
    """Computes the seconds of every op on every device.

    Parameters and inputs take no time. Seconds measured on the device's kind are used as they are. Any other
    op takes `launch_s` plus the longer of its arithmetic and its memory traffic; an op with neither takes no
    time.

    Returns:
        Seconds, (n_ops, n_devices), C-contiguous.

    Raises:
        CostError: an op's time is too large for a float.

    Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    seconds = np.empty((graph.n_ops, cluster.n_devices))
    for index, device in enumerate(cluster.devices):
        seconds[:, index] = _on_device(graph, device)
    seconds[graph.is_source] = 0.0
    if not np.isfinite(seconds).all():
        op, index = np.argwhere(~np.isfinite(seconds))[0]
        device_name = cluster.devices[index].name
        raise CostError(
            f"graph '{graph.name}': op '{graph.op_names[op]}' takes for ever on '{device_name}'; "
            "give it fewer flops and bytes_moved, or the device more speed"
        )
    return seconds


def _on_device(graph: OpGraph, device: Device) -> FloatArray:
    with np.errstate(over="ignore"):
        work = np.maximum(graph.flops / device.flops_per_s, graph.bytes_moved / device.bytes_per_s)
    idle = (graph.flops == 0) & (graph.bytes_moved == 0)
    roofline = np.where(idle, 0.0, device.launch_s + work)
    measured = graph.seconds.get(device.kind)
    return roofline if measured is None else np.where(np.isnan(measured), roofline, measured)
