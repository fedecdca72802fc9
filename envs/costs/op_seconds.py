"""The time of each op on each device: measured, calibrated or by the roofline model; and its bounds."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster, Device
from envs.costs.calibration import Calibration, backing, calibration_of
from envs.costs.efficiency import MatmulWork
from envs.costs.op_classes import CLASSES, MATMULS, op_class, traffic_factor
from graphs.limits import MAX_SECONDS, MIN_SECONDS, is_time
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import InputError

ITEM_BYTES = {"fp64": 8.0, "fp16": 2.0, "bf16": 2.0, "fp8": 1.0, "int8": 1.0}
TYPICAL_ROW = 1024
"""Elements of a row of a softmax or norm that does not say, as in the models of the data."""
TENSOR_DTYPES = ("tf32", "fp16", "bf16", "fp8", "int8")
TENSOR_GAIN = 1.5
"""The least factor over fp32 of a dtype where tensor cores compute it; on the P4 fp16 is not."""
CLASS_NUMBER = {name: number for number, name in enumerate(CLASSES)}
BOUNDS = f"a time is 0, or from {MIN_SECONDS:g} to {MAX_SECONDS:g} s"


def calibrated_seconds(graph: OpGraph, device: Device, calibration: Calibration) -> FloatArray:
    """Computes the seconds of all ops on a device: its launch, and work over what it achieves of its peaks.

    An op of a matrix class without `gemm` takes what a large one of its flops takes. An op with neither flops
    nor traffic takes no time.

    Returns:
        Seconds, (n_ops,).
    """
    seconds = np.zeros(graph.n_ops)
    class_of = np.array([CLASS_NUMBER[op_class(kind)] for kind in graph.op_types], dtype=np.int64)
    class_of[(class_of == CLASS_NUMBER["other"]) & graph.gemm.any(axis=1)] = CLASS_NUMBER["gemm"]
    least_flops = TENSOR_GAIN * device.peak("fp32")
    on_cores = {dtype for dtype in TENSOR_DTYPES if device.peak(dtype) > least_flops}
    tensor = np.array([dtype in on_cores for dtype in graph.dtypes], dtype=bool)
    for number, name in enumerate(CLASSES):
        for on_tensor in (False, True):
            ops = np.flatnonzero((class_of == number) & (tensor == on_tensor))
            if len(ops) and name in MATMULS:
                seconds[ops] = _matmul_seconds(graph, ops, device, calibration, name, on_tensor)
            elif len(ops):
                seconds[ops] = _traffic_seconds(graph, ops, device, calibration, name)
    idle = (graph.flops == 0) & (graph.bytes_moved == 0)
    return np.where(idle, 0.0, device.launch_s + seconds)


def _matmul_seconds(
    graph: OpGraph, ops: IntArray, device: Device, calibration: Calibration, name: str, tensor: bool
) -> FloatArray:
    model, machine = calibration.matmul(name, tensor=tensor), calibration.machine(device.bytes_per_s)
    shape, image = graph.gemm[ops].astype(np.float64), graph.image[ops].astype(np.float64)
    item_bytes, peak = _per_dtype(graph, ops, device)
    work = MatmulWork(shape, graph.bytes_moved[ops], item_bytes, peak, image)
    flops = graph.flops[ops]
    seconds = model.seconds_of_flops(flops, work, machine)
    shaped = np.flatnonzero((work.shape > 0).all(axis=1))
    if len(shaped) and name != "attention":
        # A backward op may be two products of the same shape.
        products = 2 * work.shape[shaped].prod(axis=1)
        repeats = np.where(flops[shaped] > 0, flops[shaped] / products, 1.0)
        once = work.select(shaped)
        once = replace(once, bytes_moved=once.bytes_moved / repeats)
        seconds[shaped] = repeats * model.seconds(once, machine)
    return seconds


def _traffic_seconds(
    graph: OpGraph, ops: IntArray, device: Device, calibration: Calibration, name: str
) -> FloatArray:
    item_bytes, peak = _per_dtype(graph, ops, device)
    row = np.where(graph.gemm[ops, 2] > 0, graph.gemm[ops, 2], TYPICAL_ROW)
    factor = np.array([traffic_factor(graph.op_types[op]) for op in ops.tolist()])
    traffic = calibration.traffic(name).seconds(
        factor * graph.bytes_moved[ops], item_bytes * row, calibration.machine(device.bytes_per_s)
    )
    return np.maximum(traffic, graph.flops[ops] / peak)


def _per_dtype(graph: OpGraph, ops: IntArray, device: Device) -> tuple[FloatArray, FloatArray]:
    """Returns the bytes of an element and the peak of the device for each op, both (n,)."""
    dtypes = [graph.dtypes[op] for op in ops.tolist()]
    pair_of = {dtype: (ITEM_BYTES.get(dtype, 4.0), device.peak(dtype)) for dtype in set(dtypes)}
    pairs = np.array([pair_of[dtype] for dtype in dtypes])
    return pairs[:, 0], pairs[:, 1]


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
            calibration = calibration_of(device.kind)
            modelled = (
                calibrated_seconds(graph, device, calibration)
                if calibration
                else roofline_seconds(graph, device)
            )
            measured = graph.seconds.get(device.kind, np.array(np.nan))
            of_device[alike] = np.where(np.isnan(measured), modelled, measured)
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


def calibration_note(graph: OpGraph, cluster: Cluster) -> str:
    """Returns `uncalibrated` if ops are timed by datasheets, `calibrated in part`, or an empty string."""
    unknown = np.array(np.nan)
    kinds = {device.kind for device in cluster.devices}
    lacking = {
        kind for kind in kinds if (np.isnan(graph.seconds.get(kind, unknown)) & graph.is_compute).any()
    }
    said = backing(lacking)
    return "" if said == "calibrated" else said


def stand_in_lines(graph: OpGraph, cluster: Cluster) -> Iterator[str]:
    """Says which devices have no peak for products of bytes, where a graph has such."""
    for dtype in {"fp8", "int8"}.intersection(np.array(graph.dtypes)[~graph.is_source]):
        if lacking := sorted({device.kind for device in cluster.devices if dtype not in device.peaks}):
            yield (
                f"graph '{graph.name}' on cluster '{cluster.name}': {', '.join(lacking)} has no peak for "
                f"{dtype}; such ops are costed at that of fp16, else of fp32"
            )


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
            sender, receiver = (cluster.devices[index].name for index in divmod(link, cluster.n_devices))
            seconds = (sizes[tensor] + n_half.flat[link]) / speeds.flat[link]
            raise CostError(
                f"graph '{graph.name}' on cluster '{cluster.name}': tensor {tensor} takes {seconds:g} s from "
                f"'{sender}' to '{receiver}'; {BOUNDS}; check the units of its bytes and of the link's "
                "bytes_per_s"
            )


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
