"""Predicted against measured times of the linear layers of transformers, in half precision and in fp32.

A profile of Sailor, `<GPU>/profiled-data-<dtype>/<model>_mbs<batch>_tp1_algo0.csv`, holds a row for each op
of a layer: microseconds of its forward pass (`forward-compute`), and MiB of its weights and of its output
(`activations`), which give the shape of a linear layer. No calibration was fitted to these times.

Source: Strati et al., "Sailor", SOSP 2025; github.com/eth-easl/sailor (MIT), `op_profiler.py`.
"""

from __future__ import annotations

import csv
import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.experiments.fidelity.steps import MeasurementError, alone, on_datasheet
from agent.experiments.rows import error_cells
from envs.cluster.cluster import Device
from envs.cluster.kinds import device_of_name
from envs.costs.op_seconds import op_seconds
from envs.costs.op_times import ITEM_BYTES
from graphs.op_graph import OpGraph, build_graph

LINEAR = {
    "enc-attention-qkv": (3, 1),
    "enc-attention-dense": (1, 1),
    "enc-MLP-GEMM-1": (4, 1),
    "enc-MLP-GEMM-2": (1, 4),
}
"""Linear layers by name: their outputs and inputs as multiples of the hidden size."""
LEFT_OUT = {"RTX-2080": "is no RTX 2080: its products exceed that board's peak by a third (an RTX 2080 Ti?)"}
"""Folders of GPUs whose kind is not known, and why."""
FOLDER = "profiled-data-"
MIB = 2.0**20


@dataclass(frozen=True)
class ProfileRow:
    """A measured linear layer beside what was predicted for it.

    Attributes:
        device: name of the device in the measurements.
        dtype: of the arithmetic.
        name: the layer, and rows, columns and inner size of its product.
        predicted_s, roofline_s, measured_s: seconds; the second by the peaks of the datasheet alone.
    """

    device: str
    dtype: str
    name: str
    predicted_s: float
    roofline_s: float
    measured_s: float


def compare_profiles(files: Iterable[Path]) -> tuple[list[ProfileRow], Counter[str]]:
    """Predicts the linear layers of profiles.

    Returns:
        The rows, and how many files were left out by the reason.

    Raises:
        MeasurementError: a file cannot be read, stands in other folders, or holds an impossible number.
        ClusterError: the folder is of no known GPU.
    """
    rows: list[ProfileRow] = []
    left_out: Counter[str] = Counter()
    for path in files:
        gpu, dtype = path.absolute().parts[-3], path.absolute().parent.name.removeprefix(FOLDER)
        if dtype not in ("fp16", "fp32"):
            raise MeasurementError(f"{path}: stands in another folder than <GPU>/{FOLDER}<fp16 or fp32>")
        if gpu in LEFT_OUT:
            left_out[f"{gpu} {LEFT_OUT[gpu]}"] += 1
        else:
            rows += _compare(path, gpu, dtype)
    return rows, left_out


def _compare(path: Path, gpu: str, dtype: str) -> Iterator[ProfileRow]:
    device = device_of_name(gpu)
    # A100 and GH200 are several times faster in fp32 than their peak allows, so TF32 was switched on.
    computed = "tf32" if dtype == "fp32" and "tf32" in device.peaks else dtype
    for name, shape, seconds in _read(path, ITEM_BYTES.get(dtype, 4.0)):
        graph = _product(shape, computed, ITEM_BYTES.get(dtype, 4.0))
        label = f"{name} {' '.join(map(str, shape))}"
        yield ProfileRow(
            gpu, computed, label, _seconds(graph, device), _seconds(graph, on_datasheet(device)), seconds
        )


def _read(path: Path, item_bytes: float) -> Iterator[tuple[str, tuple[int, int, int], float]]:
    """Yields name, rows, columns and inner size, and seconds of each linear layer."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            records = list(csv.DictReader(file))
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: cannot be read: {error}") from None
    for number, record in enumerate(records, start=2):
        name = record.get("op_name")
        if name in LINEAR:
            where = f"{path}: line {number}"
            columns, inner = LINEAR[name]
            weights = _number(record, "weights", where) * MIB / item_bytes
            hidden = round(math.sqrt(weights / (columns * inner)))
            outputs = _number(record, "activations", where) * MIB / item_bytes
            rows = round(outputs / (columns * max(hidden, 1)))
            if min(hidden, rows) < 1:
                raise MeasurementError(f"{where}: weights and activations are those of no linear layer")
            seconds = _number(record, "forward-compute", where) * 1e-6
            yield name, (rows, columns * hidden, inner * hidden), seconds
    if not any(record.get("op_name") in LINEAR for record in records):
        raise MeasurementError(f"{path}: holds no linear layers; their op_name is one of {', '.join(LINEAR)}")


def _number(record: dict[str, str], key: str, where: str) -> float:
    text = record.get(key)
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not 0 < value < 1e9:
        raise MeasurementError(f"{where}: {key} is {text!r}; expected a number, more than 0")
    return value


def _product(shape: tuple[int, int, int], dtype: str, item_bytes: float) -> OpGraph:
    m, n, k = shape
    product = {
        "name": "product",
        "type": "aten.mm",
        "dtype": dtype,
        "gemm": [1, m, n, k],
        "flops": 2.0 * m * n * k,
        "bytes_moved": item_bytes * (m * k + k * n + m * n),
    }
    return build_graph("product", "", [product], [])


def _seconds(graph: OpGraph, device: Device) -> float:
    return float(op_seconds(graph, alone(device))[0, 0])


def profiles_table(rows: Sequence[ProfileRow]) -> list[list[str]]:
    """Cells of a table of errors: a head and a row per device and dtype."""
    groups: dict[tuple[str, str], list[ProfileRow]] = defaultdict(list)
    for row in rows:
        groups[row.device, row.dtype].append(row)
    head = ["device", "dtype", "layers", "median predicted / measured", "median error", "90th percentile"]
    body = []
    for (device, dtype), group in groups.items():
        measured = [row.measured_s for row in group]
        ratio = np.median([row.predicted_s / row.measured_s for row in group])
        predicted = error_cells([row.predicted_s for row in group], measured)
        roofline = error_cells([row.roofline_s for row in group], measured)
        body.append([device, dtype, str(len(group)), f"{ratio:.2f}", *predicted, *roofline])
    return [[*head, "roofline: median", "90th percentile"], *body]
