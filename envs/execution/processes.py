"""The processes of the devices of a machine: started together, told what to do, and ended together."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Sequence
from multiprocessing.connection import wait
from types import TracebackType
from typing import Any

from envs.execution.device_process import Answer, DeviceHost
from envs.execution.program import ExecutionError
from envs.execution.transports import SharedMemory
from graphs.worker_process import Death, WorkerProcess

LONGEST_WAIT_S = 3600.0
"""Longest wait at once: the system does not take any number."""
Command = tuple[str, *tuple[Any, ...]]


class DeviceProcesses:
    """One process for each device, pinned to cores of its own as far as there are enough.

    They are started at the first command. If one of them fails, dies or hangs, all are ended; the next
    command starts new ones. They end with this process, whatever ends that.

    Args:
        n_devices: number of processes.
        timeout_s: seconds after which a command has taken too long; None = never.

    Attributes:
        memory: shared by all.
    """

    def __init__(self, n_devices: int, timeout_s: float | None = None) -> None:
        self.n_devices = n_devices
        self.memory = SharedMemory(0)
        self._timeout_s = timeout_s
        self._processes: list[WorkerProcess[Command, Answer]] = []

    @property
    def running(self) -> bool:
        """Whether the processes are there."""
        return bool(self._processes)

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Gives each device a command, and waits for all answers.

        Args:
            commands: one for each device.

        Returns:
            What each device returned.

        Raises:
            ExecutionError: a device failed, died or took too long; all processes are ended.
        """
        if not self._processes:
            self._start()
        try:
            for process, command in zip(self._processes, commands, strict=True):
                process.give(command)
            return self._answers()
        except BaseException:
            self.close()
            raise

    def tell(self, name: str, *arguments: Any) -> list[Any]:
        """Gives all devices the same command; otherwise like `ask`."""
        return self.ask([(name, *arguments)] * self.n_devices)

    def close(self) -> None:
        """Ends the processes."""
        for process in self._processes:
            process.kill()
        self._processes = []

    def __enter__(self) -> DeviceProcesses:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _start(self) -> None:
        context = multiprocessing.get_context("spawn")
        devices = range(self.n_devices)
        signals = {(i, j): context.Semaphore(0) for i in devices for j in devices if i != j}
        barrier = context.Barrier(self.n_devices)
        for cores in cores_of(self.n_devices):
            host = DeviceHost(cores, self.memory, signals, barrier)
            self._processes.append(WorkerProcess(host, self._timeout_s, inherits=True))

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        while len(found) < self.n_devices:
            waiting = [index for index in range(self.n_devices) if index not in found]
            deadline_s = min(self._processes[index].deadline_s for index in waiting)
            patience_s = min(max(deadline_s - time.monotonic(), 0.0), LONGEST_WAIT_S)
            wait([self._processes[index].connection for index in waiting], patience_s)
            for index in waiting:
                answer = self._processes[index].answer()
                if isinstance(answer, Death):
                    raise ExecutionError(f"device {index}: {answer.reason}")
                if answer is not None and answer.failure:
                    raise ExecutionError(f"device {index}: {answer.failure}")
                if answer is not None:
                    found[index] = answer.value
        return [found[index] for index in range(self.n_devices)]


def cores_of(n_devices: int) -> list[tuple[int, ...]]:
    """Shares the cores that this process may use among devices; devices share cores if there are too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    if len(cores) < n_devices:
        return [(cores[index % len(cores)],) for index in range(n_devices)]
    share = len(cores) // n_devices
    return [tuple(cores[index * share : (index + 1) * share]) for index in range(n_devices)]
