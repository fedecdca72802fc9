"""The time of each op on each device: measured, calibrated or by the roofline model; and its bounds."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster, Device
from envs.costs.calibration import calibration_of
from envs.costs.op_times import calibrated_seconds
from graphs.limits import MAX_SECONDS, MIN_SECONDS, is_time
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray
from graphs.system.errors import InputError

BOUNDS = f"a time is 0, or from {MIN_SECONDS:g} to {MAX_SECONDS:g} s"


class CostError(InputError):
    """A time of an op or a tensor beyond physics; the message names it, and the device or link."""


def op_seconds(graph: OpGraph, cluster: Cluster) -> FloatArray:
    """Computes the seconds of every op on every device.

    Parameters and inputs take no time. Seconds measured on the device's kind are used as they are. Any other
    op takes what the calibration of the device's kind says, or the roofline where there is none; an op with
    neither arithmetic nor memory traffic takes no time.

    Returns:
        Seconds, (n_ops, n_devices), C-contiguous.

    Raises:
        CostError: an op's time is not 0 and beyond the bounds of `graphs.limits`.
    """
    seconds = np.empty((graph.n_ops, cluster.n_devices))
    of_device: dict[tuple[object, ...], FloatArray] = {}
    for index, device in enumerate(cluster.devices):
        alike = replace(device, name="", peaks={}), tuple(sorted(device.peaks.items()))
        if alike not in of_device:
            of_device[alike] = _on_device(graph, device)
        seconds[:, index] = of_device[alike]
    seconds[graph.is_source] = 0.0
    good = is_time(seconds)
    if not good.all():
        op, index = np.argwhere(~good)[0]
        raise CostError(
            f"graph '{graph.name}' on cluster '{cluster.name}': op {op} ('{graph.op_names[op]}') takes "
            f"{seconds[op, index]:g} s on '{cluster.devices[index].name}'; {BOUNDS}; check the units of its "
            "flops, bytes_moved and seconds, and of the device's speeds"
        )
    return seconds


def check_transfers(graph: OpGraph, cluster: Cluster) -> None:
    """Checks that the time of each tensor over each link is 0 or within the bounds of `graphs.limits`.

    Raises:
        CostError: one is not.
    """
    sizes = graph.tensor_bytes
    if cluster.n_devices == 1 or not sizes.any():
        return
    speeds, n_half = np.array(cluster.bytes_per_s, dtype=np.float64), cluster.n_half_matrix
    np.fill_diagonal(speeds, np.nan)
    # Products, as a quotient of tiny sizes may vanish on one link and not on another.
    largest = MAX_SECONDS * speeds - n_half
    # What a link adds to every transfer is a time on its own, so that none over it is too short.
    smallest = np.where(n_half > 0, -np.inf, MIN_SECONDS * speeds)
    slowest, fastest = int(np.nanargmin(largest)), int(np.nanargmax(smallest))
    too_small = (sizes > 0) & (sizes < smallest.flat[fastest])
    too_large = sizes > largest.flat[slowest]
    for bad, link in ((too_large, slowest), (too_small, fastest)):
        if bad.any():
            tensor = int(np.argmax(bad))
            sender, receiver = (cluster.devices[at].name for at in divmod(link, cluster.n_devices))
            seconds = (sizes[tensor] + n_half.flat[link]) / speeds.flat[link]
            raise CostError(
                f"graph '{graph.name}' on cluster '{cluster.name}': tensor {tensor} takes {seconds:g} s from "
                f"'{sender}' to '{receiver}'; {BOUNDS}; check the units of its bytes and of the link's "
                "bytes_per_s"
            )


def _on_device(graph: OpGraph, device: Device) -> FloatArray:
    calibration = calibration_of(device.kind)
    modelled = (
        roofline_seconds(graph, device)
        if calibration is None
        else calibrated_seconds(graph, device, calibration)
    )
    measured = graph.seconds.get(device.kind)
    return modelled if measured is None else np.where(np.isnan(measured), modelled, measured)


def roofline_seconds(graph: OpGraph, device: Device) -> FloatArray:
    """Computes the seconds of all ops by the roofline: launch, and the longer of arithmetic and traffic.

    Returns:
        Seconds, (n_ops,); 0 for ops without arithmetic and traffic.

    Source: Williams, Waterman and Patterson, "Roofline", CACM 52(4), 2009.
    """
    peak_of = {dtype: device.peak(dtype) for dtype in set(graph.dtypes)}
    peaks = np.array([peak_of[dtype] for dtype in graph.dtypes])
    work = np.maximum(graph.flops / peaks, graph.bytes_moved / device.bytes_per_s)
    idle = (graph.flops == 0) & (graph.bytes_moved == 0)
    return np.where(idle, 0.0, device.launch_s + work)
