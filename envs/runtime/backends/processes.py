"""The processes of a machine's devices: they start together, receive commands, and end together."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

from envs.runtime.backends.cuda.stream_host import StreamHost
from envs.runtime.backends.cuda.streams import Cuda
from envs.runtime.backends.device_process import Answer, Command, DeviceHost
from envs.runtime.backends.signals import Barrier, Inbox
from envs.runtime.backends.transports import SharedMemory
from envs.runtime.device_program import DeviceLostError, ExecutionError, check_timeout
from envs.runtime.machine import CPU, check_devices
from graphs.system.worker_process import Death, WorkerProcess, answers_of


class DeviceProcesses:
    """One process for each CPU device, and one for all CUDA devices.

    They are pinned to cores of their own as far as there are enough, and started at the first command. If one
    of them fails, dies or hangs, all are ended; the next command starts new ones. They end with this process,
    whatever ends that.

    Args:
        devices: torch device of each, `cpu`, `cuda:0`, ...; or how many there are, all `cpu`.
        timeout_s: seconds after which a command has taken too long; None = never.
        separate: whether each CUDA device gets a process of its own too, as those of torch.distributed have.

    Raises:
        ExecutionError: this machine lacks a device, or `timeout_s` is no number above 0.
    """

    is_group = False

    def __init__(
        self,
        devices: int | Sequence[str],
        timeout_s: float | None = None,
        cuda: Cuda | None = None,
        *,
        separate: bool = False,
    ) -> None:
        check_timeout(timeout_s)
        self._separate = separate
        self.names = [CPU] * devices if isinstance(devices, int) else list(devices)
        self._cuda = cuda or Cuda()
        self.n_devices = len(self.names)
        self._members = [(at,) for at in range(self.n_devices)] if separate else members_of(self.names)
        check_devices(self.names, self._cuda.count() if set(self.names) != {CPU} else 0)
        self.memory = SharedMemory(0)
        self._timeout_s = timeout_s
        self._processes: list[WorkerProcess[list[Command], Answer]] = []

    @property
    def running(self) -> bool:
        """Says whether the processes are there."""
        return bool(self._processes)

    def ask(self, commands: Sequence[Command]) -> list[Any]:
        """Gives each device a command, and waits for all answers.

        Returns:
            What each device returned.

        Raises:
            DeviceLostError: a device died or took too long; all processes are ended.
            ExecutionError: a device failed; all processes are ended.
        """
        if not self._processes:
            self._start()
        try:
            for process, members in zip(self._processes, self._members, strict=True):
                process.give([commands[device] for device in members])
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

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start(self) -> None:
        inboxes = [Inbox() for _ in self.names]
        waiting = [Inbox() for _ in self._members]
        shares = zip(self._members, cores_of(len(self._members)), strict=True)
        for index, (members, cores) in enumerate(shares):
            barrier = Barrier(index, waiting)
            names = {device: self.names[device] for device in members}
            host = (
                DeviceHost(cores, self.memory, inboxes, barrier)
                if self._separate or CPU in names.values()
                else StreamHost(cores, self.memory, inboxes, barrier, names, self._cuda)
            )
            self._processes.append(WorkerProcess(host, self._timeout_s, inherits=True))

    def _answers(self) -> list[Any]:
        found: dict[int, Any] = {}
        waiting = dict(zip(self._processes, self._members, strict=True))
        while waiting:
            for process, answer in answers_of(waiting):
                members = waiting.pop(process)
                names = ", ".join(map(str, members))
                if isinstance(answer, Death):
                    raise DeviceLostError(f"device {names}: {answer.reason}")
                if answer.failure:
                    raise ExecutionError(f"device {names}: {answer.failure}")
                found.update(zip(members, answer.value, strict=True))
        return [found[index] for index in range(self.n_devices)]


def members_of(names: Sequence[str]) -> list[tuple[int, ...]]:
    """Shares devices among processes: one for each CPU device, one for all others."""
    others = tuple(index for index, name in enumerate(names) if name != CPU)
    alone = [(index,) for index, name in enumerate(names) if name == CPU]
    return sorted([others, *alone] if others else alone)


def cores_of(n_devices: int) -> list[tuple[int, ...]]:
    """Shares the cores that this process may use among devices; devices share cores if there are too few."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [0]
    if len(cores) < n_devices:
        return [(cores[index % len(cores)],) for index in range(n_devices)]
    share = len(cores) // n_devices
    return [tuple(cores[index * share : (index + 1) * share]) for index in range(n_devices)]
