"""The error of a step by class of ops: measured ops against those of the captured graph.

Beside a measured step may lie a trace, `<model>-...-<batch>.csv.gz`: the nodes of a torch.fx graph of the
model with one layer, each timed by itself (`fw_latency`, `bw_latency`, `acc_latency` in ms: forward,
backward, and the accumulation of gradients).
"""

from __future__ import annotations

import csv
import gzip
import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.experiments.fidelity.models import Workload
from agent.experiments.fidelity.steps import MeasurementError, PublishedStep, alone, on_datasheet
from envs.cluster.cluster import Device
from envs.costs.op_classes import op_class
from envs.costs.op_seconds import op_seconds
from graphs.op_graph import OpGraph

LAYER = re.compile(r"\.(?:h|layer|layers)\.0(?:\.|$)")
"""The path of a module in the one layer of a trace."""
STACK = re.compile(r"\('([^']+)', <class '([^']+)'>\)")
"""Path and class of a module in the column `meta`, the innermost last."""
LATENCIES = ("fw_latency", "bw_latency", "acc_latency")

FUNCTION = re.compile(r"(?:function|method) (\w+)")
"""A function in the column `target`."""
SCALAR = "(1,)"
"""The column `output_shape` of what the host computes."""
NO_KERNEL = frozenset(
    {"", "size", "view", "permute", "transpose", "expand", "split", "to", "type", "type_as"}
    | {"getitem", "getattr"}
)
"""Functions and methods that launch nothing, or next to nothing."""
DROPOUT = frozenset({"Dropout", "dropout"})
OF_FUNCTION = {
    "Linear": "gemm",
    "Embedding": "gather",
    "LayerNorm": "norm",
    "addmm": "gemm",
    "matmul": "bmm",
    "bmm": "bmm",
    "contiguous": "bmm",
    "reshape": "bmm",
    "softmax": "softmax",
    "embedding": "gather",
}
"""Classes of ops by the name of a function, method or class of module; others are elementwise. Copies count
with the batched products, as a matrix product of permuted operands copies them too."""
ACCUMULATION = "accumulation"
"""The class of adding a gradient to what a parameter has."""

Times = dict[tuple[str, str], float]
"""Seconds by phase and class."""


@dataclass(frozen=True)
class ClassRow:
    """The ops of one class in one phase of a step.

    Attributes:
        device: name of the device in the measurements.
        name: the workload: model, mode, sequence and batch.
        phase: `forward` or `backward`.
        op_class: class of the ops.
        predicted_s, measured_s, roofline_s: sums of seconds.
        step_s: measured seconds of the whole step.
    """

    device: str
    name: str
    phase: str
    op_class: str
    predicted_s: float
    measured_s: float
    roofline_s: float
    step_s: float


def trace_of(step: PublishedStep) -> Path:
    """Path of the trace beside a measured step, whether there is one or not."""
    return step.path.with_suffix(".csv.gz")


def compare_classes(
    steps: Iterable[PublishedStep],
    graph_of: Callable[[Workload], OpGraph],
    device_of: Callable[[str], Device],
) -> list[ClassRow]:
    """Compares the sums of measured and predicted op times by class, for all steps with a trace.

    Args:
        graph_of: captured graph of a workload.
        device_of: device by its name in the measurements.

    Raises:
        MeasurementError: a trace cannot be read.
    """
    rows = []
    for step in steps:
        if not (step.n_layers and trace_of(step).exists()):
            continue
        graph, device = graph_of(step.workload), device_of(step.device)
        measured = measured_times(trace_of(step), step.n_layers, training=step.workload.mode == "train")
        predicted = predicted_times(graph, device)
        roofline = predicted_times(graph, on_datasheet(device))
        for key in sorted({*measured, *predicted}):
            rows.append(
                ClassRow(
                    step.device,
                    str(step.workload),
                    *key,
                    predicted_s=predicted.get(key, 0.0),
                    measured_s=measured.get(key, 0.0),
                    roofline_s=roofline.get(key, 0.0),
                    step_s=step.seconds,
                )
            )
    return rows


def measured_times(path: Path, n_layers: int, *, training: bool) -> Times:
    """Sums the measured seconds of a trace by phase and class, as if it had `n_layers` layers.

    Args:
        training: whether dropout does anything.

    Raises:
        MeasurementError: the trace cannot be read.
    """
    times: Times = defaultdict(float)
    for node in _nodes(path):
        stack = STACK.findall(node["meta"])
        function = _function_of(node, stack[-1][1] if stack else "")
        if function in NO_KERNEL or (not training and function in DROPOUT):
            continue
        op_class = OF_FUNCTION.get(function, "elementwise")
        repeats = n_layers if stack and LAYER.search(stack[-1][0]) else 1
        forward, backward, accumulation = (_milliseconds(node[key], path) / 1e3 for key in LATENCIES)
        times["forward", op_class] += repeats * forward
        times["backward", op_class] += repeats * backward
        times["backward", ACCUMULATION] += repeats * accumulation
    return {key: seconds for key, seconds in times.items() if seconds}


def predicted_times(graph: OpGraph, device: Device) -> Times:
    """Sums the seconds that the ops of a graph take on a device by phase and class."""
    seconds = op_seconds(graph, alone(device))[:, 0].tolist()
    classes = [op_class(kind) for kind in graph.op_types]
    with_products = {graph.modules[op] for op, kind in enumerate(classes) if kind == "gemm"}
    times: Times = defaultdict(float)
    for op, kind in enumerate(classes):
        if graph.phases[op] == "optimizer":
            times["backward", ACCUMULATION] += seconds[op]
        elif kind == "move":
            times[graph.phases[op], "bmm"] += seconds[op]
        elif kind == "reduction" and graph.modules[op] in with_products:
            times[graph.phases[op], "gemm"] += seconds[op]  # of a bias, which a trace counts with its layer
        else:
            times[graph.phases[op], kind] += seconds[op]
    return {key: value for key, value in times.items() if value}


def _function_of(node: Mapping[str, str], module_class: str) -> str:
    """Name of the function, method or class of module that a node calls; nothing if it works on no tensor."""
    if node["op"] == "call_module":
        return module_class.rpartition(".")[2]
    if node["op"] not in ("call_function", "call_method") or node["output_shape"] == SCALAR:
        return ""
    found = FUNCTION.search(node["target"])
    return found[1] if found else node["target"]


def _nodes(path: Path) -> Iterator[dict[str, str]]:
    needed = {"op", "target", "meta", "output_shape", *LATENCIES}
    try:
        with gzip.open(path, "rt", encoding="utf-8", newline="") as file:
            reader = csv.DictReader(file)
            missing = needed - set(reader.fieldnames or ())
            if missing:
                raise MeasurementError(f"{path}: lacks the column '{min(missing)}'")
            for number, node in enumerate(reader, start=2):
                if any(node[key] is None for key in needed):
                    raise MeasurementError(f"{path}: row {number} is cut short")
                yield node
    except (OSError, EOFError, UnicodeDecodeError, csv.Error) as error:
        raise MeasurementError(f"{path}: is no compressed CSV file: {error}") from None


def _milliseconds(text: str, path: Path) -> float:
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise MeasurementError(f"{path}: a latency is '{text}'; expected milliseconds of at least 0")
    return value


def classes_table(rows: Sequence[ClassRow]) -> list[list[str]]:
    """Cells of a table: per device and class, its share of the measured ops and predicted over measured."""
    sums: dict[str, dict[str, list[float]]] = defaultdict(lambda: defaultdict(lambda: [0.0, 0.0, 0.0]))
    for row in rows:
        for at, seconds in enumerate((row.predicted_s, row.measured_s, row.roofline_s)):
            sums[row.device][row.op_class][at] += seconds
    body = []
    for device, by_class in sums.items():
        total = sum(measured for _, measured, _ in by_class.values())
        for kind, (predicted, measured, roofline) in sorted(by_class.items(), key=lambda item: -item[1][1]):
            body.append(
                [
                    device,
                    kind,
                    f"{measured / total:.1%}",
                    _ratio(predicted, measured),
                    f"{(predicted - measured) / total:+.1%}",
                    _ratio(roofline, measured),
                ]
            )
    head = ["device", "class", "share", "predicted / measured", "error of the sum", "roofline / measured"]
    return [head, *body]


def _ratio(value: float, over: float) -> str:
    return f"{value / over:.2f}" if over else "-"
