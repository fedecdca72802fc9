"""Measured step times for training: each placement is run once, on the devices that its cluster is."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses, torch_devices
from envs.runtime.runnable_model import RunnableModel
from envs.runtime.step_meter import StepMeter, StepTimeStore
from graphs.system.array_types import IntArray
from graphs.system.errors import printable

FILE = "measurements.jsonl"
"""File of a run that keeps what was measured."""


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
        if not measured.feasible:
            self._tell(measured.failure)
        return measured.median_s if measured.feasible else float("inf")

    def _tell(self, failure: str) -> None:
        """Reports the first failure, and the file that holds all reasons."""
        if not self._told:
            path = printable(str(self._folder / FILE))
            print(
                f"a placement cannot be run, and counts as out of memory: {failure}; "
                f"see {path} for the others",
                file=sys.stderr,
            )
        self._told = True
