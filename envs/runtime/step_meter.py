"""Measures the step time of placements on the devices at hand, and stores it."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses, torch_devices
from envs.runtime.device_program import Call, DeviceLostError, ExecutionError
from envs.runtime.runnable_model import RunnableModel
from envs.runtime.runner import StepRunner, StepTimes
from graphs.capture.captured_step import CapturedStep
from graphs.identity import content_hash
from graphs.system import json_fields
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import printable
from graphs.system.json_files import Journal

WARM_UP_STEPS = 3
MIN_STEPS = 20
FILE = "measurements.jsonl"
"""File of a run that keeps what was measured."""
KEYS = frozenset({"placement", "median_s", "low_s", "high_s", "n_steps", "failure"})


@dataclass(frozen=True)
class MeasuredStep:
    """The time of a step as it was measured.

    Attributes:
        median_s: over the steps; NaN if it cannot be run.
        low_s, high_s: first and ninth decile over the steps.
        failure: why it cannot be run, in one line; "" if it can.
    """

    median_s: float
    low_s: float
    high_s: float
    n_steps: int
    failure: str = ""

    @property
    def feasible(self) -> bool:
        """Says whether the step can be run."""
        return not self.failure


def pooled(rounds: Sequence[MeasuredStep]) -> MeasuredStep:
    """Joins the rounds in which a placement was measured; one that failed fails it.

    The median is that of the rounds' medians; the deciles are the least and greatest of theirs.
    """
    failed = [times for times in rounds if not times.feasible]
    if failed:
        return failed[0]
    return MeasuredStep(
        float(np.median([times.median_s for times in rounds])),
        min(times.low_s for times in rounds),
        max(times.high_s for times in rounds),
        sum(times.n_steps for times in rounds),
    )


class StepMeter:
    """Measures placements of one captured step, each on the same processes.

    A step that hangs, dies or runs out of memory ends the processes, which restart for the next. One
    that hangs or dies is tried once more.

    Args:
        module, inputs: module and inputs that are run; the module is not changed.
        n_steps: number of steps that are timed, at least 20; before them some are run without being timed.

    Raises:
        ValueError: fewer than 20 steps.
    """

    def __init__(
        self,
        captured: CapturedStep,
        module: nn.Module,
        inputs: Any,
        processes: DeviceProcesses,
        *,
        n_steps: int = MIN_STEPS,
    ) -> None:
        if n_steps < MIN_STEPS:
            raise ValueError(f"{n_steps} steps; time at least {MIN_STEPS}")
        self.captured, self.processes, self.n_steps = captured, processes, n_steps
        self._module, self._inputs = module, inputs

    def measure(self, device_of: IntArray, n_steps: int | None = None) -> MeasuredStep:
        """Measures the step under a placement.

        Args:
            device_of: device of each op of the captured graph, int (n_ops,).
            n_steps: number of steps that are timed, if it is another than the meter's, as in one of several
                rounds.
        """
        try:
            _, steps = self._timed_or_again(device_of, n_steps or self.n_steps)
        except ExecutionError as error:
            return MeasuredStep(np.nan, np.nan, np.nan, 0, str(error))
        low_s, median_s, high_s = np.quantile([step.total_s for step in steps], [0.1, 0.5, 0.9])
        return MeasuredStep(float(median_s), float(low_s), float(high_s), len(steps))

    def op_seconds(self, device: int, n_steps: int | None = None) -> FloatArray:
        """Measures every op on one device, which runs the whole step.

        Args:
            n_steps: argument of `measure`.

        Returns:
            Median seconds of each op, (n_ops,), with those of the views made since the op before: 0 for
            sources, and for updates their share by bytes of what the optimizer takes for all of them.

        Raises:
            DeviceLostError: the device died or took too long, twice.
            ExecutionError: the step cannot be run on that device.
        """
        graph = self.captured.graph
        everywhere = np.full(graph.n_ops, device)
        runner, steps = self._timed_or_again(everywhere, n_steps or self.n_steps, timed_ops=True)
        spans = [step.records[device].spans for step in steps]
        medians = np.median(np.diff(np.array(spans), axis=2)[:, :, 0], axis=0)
        seconds, views_s = np.zeros(graph.n_ops), 0.0
        for instruction, median_s in zip(runner.programs[device].instructions, medians, strict=False):
            if isinstance(instruction, Call) and instruction.op >= 0:
                seconds[instruction.op] += median_s + views_s
                views_s = 0.0
            else:
                views_s += median_s
        updates = list(self.captured.op_of_update.values())
        moved = graph.bytes_moved[updates]
        seconds[updates] = medians[-1] * moved / max(moved.sum(), 1.0)
        return seconds

    def _timed_or_again(
        self, device_of: IntArray, n_steps: int, *, timed_ops: bool = False
    ) -> tuple[StepRunner, list[StepTimes]]:
        """Times steps, once more where a device was lost: that may not be the step's fault."""
        try:
            return self._timed(device_of, n_steps, timed_ops)
        except DeviceLostError:
            return self._timed(device_of, n_steps, timed_ops)

    def _timed(
        self, device_of: IntArray, n_steps: int, timed_ops: bool
    ) -> tuple[StepRunner, list[StepTimes]]:
        # Steps that are timed train on one batch; it must not drive the loss out of bounds.
        settings: dict[str, Any] = {"options": {"lr": 1e-6}, "check_finite": False}
        runner = StepRunner(self.captured, device_of, self._module, self.processes, **settings)
        runner.set_inputs(self._inputs)
        runner.timed_steps(WARM_UP_STEPS)
        return runner, runner.timed_steps(n_steps, timed_ops=timed_ops)


class StepTimeStore:
    """Measures placements of one captured step, and stores each time in a file at once.

    What failed is in the file with its reason, and is measured again where the file is opened again.

    Args:
        path: one JSON object a line; a last line that a crash cut short is measured again.
        devices: names of the devices that the meter's processes are; times on others are others.

    Raises:
        JournalError: the file holds anything else.
    """

    def __init__(self, path: Path, meter: StepMeter, devices: list[str]) -> None:
        self._meter = meter
        self._step = hashlib.sha256(f"{content_hash(meter.captured.graph)} {devices}".encode()).hexdigest()
        self._known: dict[str, MeasuredStep] = {}
        self._journal = Journal(path, self._read)

    def measure(
        self, device_of: IntArray, *, round: int | None = None, n_steps: int | None = None
    ) -> MeasuredStep:
        """Returns the time of a placement, measured now or before.

        Args:
            device_of: device of each op, int (n_ops,).
            round: which of several measurements of the placement it is; None for the only one.
        """
        placed = np.ascontiguousarray(device_of, dtype=np.int64).tobytes()
        which = b"" if round is None else f" round {round}".encode()
        key = hashlib.sha256(self._step.encode() + placed + which).hexdigest()
        if key not in self._known:
            self._known[key] = self._meter.measure(device_of, n_steps)
            values = asdict(self._known[key]).items()
            record = {name: None if value != value else value for name, value in values}
            self._journal.append({"placement": key} | record)
        return self._known[key]

    def _read(self, value: object, where: str) -> None:
        record = json_fields.fields(value, where, KEYS)
        low_s, median_s, high_s = (
            np.nan if record[name] is None else json_fields.number(record[name], f"{where}: {name}")
            for name in ("low_s", "median_s", "high_s")
        )
        n_steps = json_fields.integer(record["n_steps"], f"{where}: n_steps")
        failure = json_fields.text(record["failure"], f"{where}: failure")
        step = MeasuredStep(median_s, low_s, high_s, n_steps, failure)
        placement = json_fields.name(record["placement"], f"{where}: placement")
        if step.feasible:
            self._known[placement] = step


class MeasuredStepTimer:
    """Measures the step of a model under placements, within the block of `storing_in`.

    Args:
        clusters: clusters that it is placed on; their devices are devices of this machine.
        n_steps: steps that are timed for a placement.
        timeout_s: seconds after which a placement is given up.

    Raises:
        ExecutionError: this machine lacks a device of a cluster.
    """

    def __init__(
        self, model: RunnableModel, clusters: Sequence[Cluster], *, n_steps: int, timeout_s: float
    ) -> None:
        self._model, self._n_steps, self._timeout_s = model, n_steps, timeout_s
        self._devices = {cluster.name: torch_devices(cluster) for cluster in clusters}
        self._processes: dict[str, DeviceProcesses] = {}
        self._measurements: dict[str, StepTimeStore] = {}
        self._folder, self._told = Path(), False

    @contextmanager
    def storing_in(self, folder: Path) -> Iterator[None]:
        """Stores the measurements in a folder, reuses those that it holds, and ends the processes at exit."""
        self._folder = folder
        try:
            yield
        finally:
            for processes in self._processes.values():
                processes.close()
            self._processes, self._measurements = {}, {}

    def __call__(self, problem: Problem, device_of: IntArray) -> float:
        """Returns the median step time in seconds; infinite where the placement cannot be run.

        Args:
            device_of: device of each op of the model's graph, int (n_ops,).
        """
        name = problem.cluster.name
        if name not in self._measurements:
            model = self._model
            processes = self._processes[name] = DeviceProcesses(self._devices[name], self._timeout_s)
            meter = StepMeter(model.captured, model.module, model.inputs, processes, n_steps=self._n_steps)
            self._measurements[name] = StepTimeStore(self._folder / FILE, meter, self._devices[name])
        measured = self._measurements[name].measure(device_of)
        if measured.feasible:
            return measured.median_s
        if not self._told:
            path, why = printable(str(self._folder / FILE)), measured.failure
            print(
                f"a placement cannot be run, and counts as out of memory: {why}; see {path} for the others",
                file=sys.stderr,
            )
        self._told = True
        return float("inf")
