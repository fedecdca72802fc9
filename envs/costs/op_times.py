"""The seconds of the ops of a graph on a device whose kind has a calibration."""

from __future__ import annotations

import numpy as np

from envs.cluster.cluster import Device
from envs.costs.calibration import Calibration
from envs.costs.efficiency import MatmulWork
from envs.costs.op_classes import CLASSES, MATMULS, op_class, traffic_factor
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

ITEM_BYTES = {"fp64": 8.0, "fp16": 2.0, "bf16": 2.0}
TYPICAL_ROW = 1024
"""Elements of a row of a softmax or norm that does not say, as in the models of the data."""
TENSOR_DTYPES = ("tf32", "fp16", "bf16")
TENSOR_GAIN = 1.5
"""The least factor over fp32 of a dtype where tensor cores compute it; on the P4 fp16 is not."""


def calibrated_seconds(graph: OpGraph, device: Device, calibration: Calibration) -> FloatArray:
    """Computes the seconds of all ops on a device: its launch, and work over what it achieves of its peaks.

    An op of a matrix class without `gemm` takes what a large one of its flops takes. An op with neither flops
    nor traffic takes no time.

    Returns:
        Seconds, (n_ops,).
    """
    seconds = np.zeros(graph.n_ops)
    class_of = np.array([CLASS_NUMBER[op_class(kind)] for kind in graph.op_types], dtype=np.int64)
    tensor_of = {dtype: _on_tensor_cores(device, dtype) for dtype in set(graph.dtypes)}
    tensor = np.array([tensor_of[dtype] for dtype in graph.dtypes], dtype=bool)
    for number, name in enumerate(CLASSES):
        for on_tensor in (False, True):
            ops = np.flatnonzero((class_of == number) & (tensor == on_tensor))
            if len(ops) and name in MATMULS:
                seconds[ops] = _matmul_seconds(graph, ops, device, calibration, name, on_tensor)
            elif len(ops):
                seconds[ops] = _traffic_seconds(graph, ops, device, calibration, name)
    idle = (graph.flops == 0) & (graph.bytes_moved == 0)
    return np.where(idle, 0.0, device.launch_s + seconds)


CLASS_NUMBER = {name: number for number, name in enumerate(CLASSES)}


def _on_tensor_cores(device: Device, dtype: str) -> bool:
    return dtype in TENSOR_DTYPES and device.peak(dtype) > TENSOR_GAIN * device.peak("fp32")


def _matmul_seconds(
    graph: OpGraph, ops: IntArray, device: Device, calibration: Calibration, name: str, tensor: bool
) -> FloatArray:
    model, machine = calibration.matmul(name, tensor=tensor), calibration.machine(device.bytes_per_s)
    work = _work(graph, ops, device)
    flops = graph.flops[ops]
    seconds = model.seconds_of_flops(flops, work, machine)
    shaped = np.flatnonzero((work.shape > 0).all(axis=1))
    if len(shaped) and name != "attention":
        # A backward op may be two products of the same shape.
        products = 2 * work.shape[shaped].prod(axis=1)
        repeats = np.where(flops[shaped] > 0, flops[shaped] / products, 1.0)
        once = work.select(shaped).traffic_over(repeats)
        seconds[shaped] = repeats * model.seconds(once, machine)
    return seconds


def _work(graph: OpGraph, ops: IntArray, device: Device) -> MatmulWork:
    shape, image = graph.gemm[ops].astype(np.float64), graph.image[ops].astype(np.float64)
    item_bytes, peak = _per_dtype(graph, ops, device)
    return MatmulWork(shape, graph.bytes_moved[ops], item_bytes, peak, image)


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
    known = {dtype: (ITEM_BYTES.get(dtype, 4.0), device.peak(dtype)) for dtype in set(dtypes)}
    pairs = np.array([known[dtype] for dtype in dtypes])
    return pairs[:, 0], pairs[:, 1]
