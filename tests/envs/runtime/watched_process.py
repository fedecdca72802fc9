"""The devices of a placement in one process, where what the CUDA devices do is watched."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

import torch

from envs.runtime.backends.cuda.stream_host import StreamHost
from envs.runtime.backends.device_process import DeviceHost
from envs.runtime.backends.processes import members_of
from envs.runtime.backends.signals import Inbox
from envs.runtime.backends.transports import SharedMemory
from tests.envs.runtime.recorded_streams import Order, RecordedCuda


class OneProcess:
    """Stands in for `DeviceProcesses`: hosts the CUDA devices here, watched, and the CPU in a thread."""

    running = True

    def __init__(self, names: Sequence[str], cuda: RecordedCuda) -> None:
        self.n_devices, self.memory = len(names), SharedMemory(0)
        self.cuda, self.order = cuda, Order(cuda, self.memory.bytes)
        self._members = members_of(names)
        inboxes = [Inbox() for _ in names]
        barrier = threading.Barrier(len(self._members))
        cores = tuple(range(torch.get_num_threads()))
        of_gpus = {device: name for device, name in enumerate(names) if name != "cpu"}
        self.host = StreamHost(cores, self.memory, inboxes, barrier, of_gpus, cuda)
        self.cpu = DeviceHost(cores, self.memory, inboxes, barrier)

    def ask(self, commands: Sequence[tuple[Any, ...]]) -> list[Any]:
        found: dict[int, Any] = {}

        def on_cpu(device: int) -> None:
            answer = self.cpu([commands[device]])
            assert not answer.failure
            found[device] = answer.value[0]

        gpus = next(each for each in self._members if set(each) == set(self.host.names))
        threads = [
            threading.Thread(target=on_cpu, args=members, daemon=True)
            for members in self._members
            if members != gpus
        ]
        for thread in threads:
            thread.start()
        answer = self._watched([commands[device] for device in gpus])
        assert not answer.failure, answer.failure
        found.update(zip(gpus, answer.value, strict=True))
        for thread in threads:
            thread.join(30)
        return [found[device] for device in range(self.n_devices)]

    def close(self) -> None:
        pass

    def _watched(self, commands: list[Any]) -> Any:
        if commands[0][0] != "steps":
            return self.host(commands)
        self.order.shared = self.memory.bytes
        for part in self.host._parts:
            for _, tensor in part.interpreter._sources:
                self.order.own(tensor, part.lane.compute)
        with self.order:
            answer = self.host(commands)
        if not self.order.is_over():
            self.order.faults.append("a stream is still busy when the step is over")
        return answer
