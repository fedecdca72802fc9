"""The processes of the devices of this machine, and which of its devices stand for those of a cluster."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import torch

from envs.cluster.cluster import Cluster
from envs.cluster.kinds import CPU_KINDS
from envs.runtime.backends.cuda.stream_host import StreamHost
from envs.runtime.backends.cuda.streams import Cuda
from envs.runtime.backends.device_process import Answer, Command, DeviceHost, DeviceTask
from envs.runtime.backends.signals import Barrier, Inbox
from envs.runtime.backends.transports import SharedMemory, offsets_of
from envs.runtime.backends.wire import StepRecord, pack
from envs.runtime.device_program import (
    DeviceLostError,
    DeviceProgram,
    ExecutionError,
    Instruction,
    Receive,
    Send,
    Slot,
    TensorSpec,
    Transfer,
    check_timeout,
)
from graphs.system.worker_process import Death, WorkerProcess, answers_of

CPU = "cpu"


class DeviceProcesses:
    """One process for each CPU device, and one for all CUDA devices.

    They are pinned to cores of their own as far as there are enough, and started at the first command. If one
    of them fails, dies or hangs, all are ended; the next command starts new ones. They end with this process,
    whatever ends that.

    Args:
        devices: torch device of each, `cpu`, `cuda:0`, ...; or how many there are, all `cpu`.
        timeout_s: seconds after which a command has taken too long; None = never.

    Raises:
        ExecutionError: this machine lacks a device, or `timeout_s` is no number above 0.
    """

    def __init__(
        self, devices: int | Sequence[str], timeout_s: float | None = None, cuda: Cuda | None = None
    ) -> None:
        check_timeout(timeout_s)
        self.names = [CPU] * devices if isinstance(devices, int) else list(devices)
        self._cuda = cuda or Cuda()
        self.n_devices = len(self.names)
        self._members = members_of(self.names)
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
                if CPU in names.values()
                else StreamHost(cores, self.memory, inboxes, barrier, names, self._cuda)
            )
            self._processes.append(WorkerProcess(host, self._timeout_s, inherits=True))

    def _answers(self) -> list[Any]:
        value_of: dict[int, Any] = {}
        waiting = dict(zip(self._processes, self._members, strict=True))
        while waiting:
            for process, answer in answers_of(waiting):
                members = waiting.pop(process)
                names = ", ".join(map(str, members))
                if isinstance(answer, Death):
                    raise DeviceLostError(f"device {names}: {answer.reason}")
                if answer.failure:
                    raise ExecutionError(f"device {names}: {answer.failure}")
                value_of.update(zip(members, answer.value, strict=True))
        return [value_of[index] for index in range(self.n_devices)]


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


def torch_devices(cluster: Cluster) -> list[str]:
    """Names the torch device that each device of a cluster runs on: `cpu`, or the next of `cuda:0`, ...

    Raises:
        ExecutionError: this machine lacks one.
    """
    names: list[str] = []
    n_gpus, n_there = 0, torch.cuda.device_count()
    for device in cluster.devices:
        if device.kind.startswith(CPU_KINDS):
            names.append(CPU)
            continue
        if n_gpus == n_there:
            raise ExecutionError(
                f"cluster '{cluster.name}': '{device.name}' is a {device.kind}, and this machine has only "
                f"{n_there} CUDA devices; place on a cluster of this machine, such as 2xcpu"
            )
        names.append(f"cuda:{n_gpus}")
        n_gpus += 1
    return names


def check_devices(names: Sequence[str], n_there: int) -> None:
    """Checks the names of torch devices.

    Args:
        n_there: number of CUDA devices that this machine has.

    Raises:
        ExecutionError: a name is unknown, is given twice, or is that of a device that is not there.
    """
    for index, name in enumerate(names):
        kind, _, number = name.partition(":")
        if name == CPU:
            continue
        if kind != "cuda" or not number.isdecimal() or number != str(int(number)):
            raise ExecutionError(f"device {index} is '{name}'; use cpu, or cuda:0 and so on")
        if name in names[:index]:
            raise ExecutionError(f"device {index} is '{name}' again; name each CUDA device once")
        if int(number) >= n_there:
            raise ExecutionError(
                f"device {index} is '{name}', and this machine has {n_there} CUDA devices; use others, or cpu"
            )


def n_cores() -> int:
    """Number of processor cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def time_transfers(n_bytes: int, repeats: int, processes: DeviceProcesses) -> list[float]:
    """Times a transfer from device 0 to device 1, as half of the way there and back.

    Args:
        n_bytes: a multiple of 4.
        repeats: number of round trips, after one that is not timed.
        processes: processes of at least two devices.

    Returns:
        Seconds of one transfer, (repeats,).
    """
    spec = TensorSpec.of(torch.empty(n_bytes // 4, device="meta"))
    there, back = Transfer(0, 0, 1, 0, spec), Transfer(1, 1, 0, 0, spec)
    instructions_of: list[tuple[Instruction, ...]] = [
        (Send(there, Slot(0)), Receive(back, Slot(1))),
        (Receive(there, Slot(1)), Send(back, Slot(1))),
        *[()] * (processes.n_devices - 2),
    ]
    offsets, size = offsets_of([spec, spec])
    processes.memory.grow(size)
    unused: dict[str, Any] = dict.fromkeys(("constants", "inputs", "trained", "new_values", "outputs"), ())
    commands: list[Command] = []
    for device, instructions in enumerate(instructions_of):
        program = DeviceProgram(
            device=device,
            n_slots=2,
            instructions=instructions,
            frees=((),) * len(instructions),
            state=(("sent", Slot(0)),),
            **unused,
        )
        task = DeviceTask(
            program=program,
            memory_bytes=size,
            transfer_offsets=offsets,
            inputs={},
            state={"sent": pack(torch.ones(spec.shape))},
            constants={},
            optimizer=None,
            seed=0,
        )
        commands.append(("load", task))
    processes.ask(commands)
    records: list[StepRecord] = processes.tell("steps", repeats + 1, False)[0]
    return [(timed.end_s - timed.start_s) / 2 for timed in records[1:]]
