"""Measured whole steps against simulated ones: one device, the same model, batch and sequence.

A folder of measurements holds a folder a device, and in it a file a step, named
`<model>-<inf or train>-<sequence>-<batch>.json`: `e2e_latency` is the time of the step in milliseconds.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agent.experiments.fidelity.models import LEFT_OUT, MODELS, GraphCache, Workload
from agent.experiments.rows import axis, error_cells, markdown_table, read_rows
from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import device_of_name
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.limits import MAX_SECONDS, MIN_SECONDS, is_time
from graphs.op_graph import OpGraph
from graphs.system import json_fields
from graphs.system.errors import InputError
from graphs.system.json_files import read_json

NAME = re.compile(r"([A-Za-z0-9_]+)-(inf|train)-([1-9]\d{0,6})-([1-9]\d{0,6})(?:-([A-Za-z0-9_]+))?")
"""Model, mode, sequence, batch and variant in the name of a file."""
VARIANTS = re.compile(r"fusion|[dpt]p\d+(_\d+)?")
"""Steps that are no plain steps of one device: of fused ops, or split over several devices."""
REQUIRED = frozenset({"e2e_latency"})
OPTIONAL = frozenset({"num_layer", "fw_latency", "bwall_latency"})
DATASHEET = "datasheet"
"""A kind of device without calibration or measured ops: its times are the roofline's."""


STEPS = Path(__file__).parent / "measured" / "steps"
"""The measured steps that come with the project."""


class MeasurementError(InputError):
    """Measurements that cannot be read; the message says where and what would be right."""


@dataclass(frozen=True)
class PublishedStep:
    """A step that was measured.

    Attributes:
        device: name of the device in the measurements.
        seconds: of the step.
    """

    device: str
    workload: Workload
    seconds: float


@dataclass(frozen=True)
class StepRow:
    """A measured and a simulated step.

    Attributes:
        device: name of the device in the measurements.
        name: the workload: model, mode, sequence and batch.
        predicted_s, measured_s, roofline_s: seconds; the last by the peaks of the datasheet alone.
        error: `predicted_s` over `measured_s`, less 1.
        n_ops: ops of the captured graph.
    """

    device: str
    name: str
    model: str
    mode: str
    sequence: int
    batch: int
    predicted_s: float
    measured_s: float
    roofline_s: float
    error: float
    n_ops: int


def read_steps(folder: Path) -> tuple[list[PublishedStep], Counter[str]]:
    """Reads the measured steps of a folder with a folder a device.

    Returns:
        The steps in the order of their paths, and how many files were left out by the reason.

    Raises:
        MeasurementError: the folder holds no steps, or a file has another name or impossible values.
        ModelError: a step of an unknown model.
        FileFormatError: a file is no JSON or lacks a key.
    """
    steps: list[PublishedStep] = []
    left_out: Counter[str] = Counter()
    for path in sorted(folder.glob("*/*.json")):
        workload, variant = parse_name(path)
        if variant:
            left_out["fused ops" if variant == "fusion" else "several devices"] += 1
        elif workload.model in LEFT_OUT:
            left_out[f"{workload.model}: {LEFT_OUT[workload.model]}"] += 1
        else:
            MODELS.check(workload.model)
            steps.append(_read_step(path, workload))
    if not steps:
        raise MeasurementError(
            f"{folder}: holds no measured steps; give a folder with files "
            "<device>/<model>-<inf or train>-<sequence>-<batch>.json"
        )
    return steps, left_out


def parse_name(path: Path) -> tuple[Workload, str]:
    """Reads the name of a file: its workload, and its variant or nothing.

    Raises:
        MeasurementError: another name.
    """
    match = NAME.fullmatch(path.stem)
    variant = (match[5] or "") if match else ""
    if not match or (variant and not VARIANTS.fullmatch(variant)):
        raise MeasurementError(
            f"{path}: is named otherwise than <model>-<inf or train>-<sequence>-<batch>.json, or the same "
            "with -fusion, -dp<N>, -tp<N> or -pp<N>"
        )
    return Workload(match[1], match[2], int(match[3]), int(match[4])), variant


def _read_step(path: Path, workload: Workload) -> PublishedStep:
    record = json_fields.fields(read_json(path), str(path), REQUIRED, OPTIONAL)
    seconds = json_fields.number(record["e2e_latency"], f"{path}: e2e_latency") / 1e3
    if not (seconds > 0 and is_time(seconds)):
        raise MeasurementError(
            f"{path}: e2e_latency is {seconds * 1e3:g} ms; a step takes {MIN_SECONDS:g} to {MAX_SECONDS:g} s"
        )
    return PublishedStep(path.parent.name, workload, seconds)


def alone(device: Device) -> Cluster:
    """Builds a cluster of one device."""
    return Cluster(device.kind, (device,), np.ones((1, 1)), np.zeros((1, 1)))


def on_datasheet(device: Device) -> Device:
    """Returns a device whose ops take the roofline's times."""
    return replace(device, kind=DATASHEET)


def simulate_alone(graph: OpGraph, device: Device) -> float:
    """Simulates the step of a graph on one device, in seconds."""
    return step_time_s(Problem(graph, alone(device)), np.zeros(graph.n_ops, dtype=np.int64))


def compare_steps(
    steps: Iterable[PublishedStep],
    graph_of: Callable[[Workload], OpGraph],
    device_of: Callable[[str], Device],
) -> list[StepRow]:
    """Simulates measured steps.

    Args:
        graph_of: captured graph of a workload.
        device_of: device by its name in the measurements; it raises an `InputError` for an unknown one.
    """
    rows = []
    for step in steps:
        device = device_of(step.device)
        graph = graph_of(step.workload)
        predicted_s = simulate_alone(graph, device)
        rows.append(
            StepRow(
                step.device,
                str(step.workload),
                **vars(step.workload),
                predicted_s=predicted_s,
                measured_s=step.seconds,
                roofline_s=simulate_alone(graph, on_datasheet(device)),
                error=predicted_s / step.seconds - 1,
                n_ops=graph.n_ops,
            )
        )
    return rows


def kendall(predicted_s: Sequence[float], measured_s: Sequence[float]) -> float:
    """Kendall's tau-b of two rankings, -1 to 1; NaN for fewer than two entries.

    Source: Kendall, "The treatment of ties in ranking problems", Biometrika 33(3), 1945.
    """
    from scipy.stats import kendalltau

    return float(kendalltau(predicted_s, measured_s).statistic) if len(predicted_s) > 1 else float("nan")


def steps_table(rows: Sequence[StepRow]) -> list[list[str]]:
    """Cells of a table of errors: a head, a row per device, and one of all of them."""
    head = ["device", "steps", "median error", "90th percentile", "Kendall's tau"]
    roofline = ["roofline: median", "90th percentile", "Kendall's tau"]
    devices = axis(row.device for row in rows)
    body = [[device, *_cells([row for row in rows if row.device == device])] for device in devices]
    return [head + roofline, *body, ["all", *_cells(rows)]]


def _cells(rows: Sequence[StepRow]) -> list[str]:
    measured = [row.measured_s for row in rows]
    cells = [str(len(rows))]
    for predicted in ([row.predicted_s for row in rows], [row.roofline_s for row in rows]):
        cells += [*error_cells(predicted, measured), f"{kendall(predicted, measured):.3f}"]
    return cells


def step_rows(folder: Path, steps_in: str) -> Iterator[list[StepRow]]:
    """Simulates the measured steps of a folder; none given: of the project's own."""
    measured, left_out = read_steps(Path(steps_in) if steps_in else STEPS)
    yield compare_steps(measured, GraphCache(folder).workload, device_of_name)
    for reason, count in left_out.items():
        print(f"{count} left out: {reason}")


def step_tables(*files: Path) -> Iterator[str]:
    """Yields simulated against measured steps of one GPU, of each file that there is."""
    for file in files:
        if file.exists():
            yield markdown_table(steps_table(read_rows(file, StepRow)))
