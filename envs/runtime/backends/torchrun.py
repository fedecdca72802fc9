"""Devices in processes that torchrun started, on one machine or several: rank `i` is device `i`."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from envs.runtime.backends.device_process import DeviceHost, DeviceTask
from envs.runtime.backends.transports import SharedMemory
from envs.runtime.backends.wire import decode, encode
from envs.runtime.device_program import ExecutionError, TensorSpec, Transfer, check_timeout

TIMEOUT_S = 600.0
LOST = ("Connection", "imed out")
"""Words in torch.distributed's errors that mean that another process is gone or silent."""


class TorchrunDevices:
    """Stands in for `DeviceProcesses`: every rank asks the same of all devices, and gets all answers.

    A rank does what is asked of its own device, and sends the answer to the others, as bytes that are safe to
    read. Tensors go point to point through torch.distributed.

    Args:
        timeout_s: seconds after which a rank waits no longer for another.

    Raises:
        ExecutionError: torchrun did not start this process.
    """

    def __init__(self, timeout_s: float | None = None) -> None:
        check_timeout(timeout_s)
        self._begun = not dist.is_initialized()
        if self._begun:
            if "RANK" not in os.environ:
                raise ExecutionError("no process group; start one process per device by torchrun")
            dist.init_process_group("gloo", timeout=timedelta(seconds=timeout_s or TIMEOUT_S))
        self.rank, self.n_devices = dist.get_rank(), dist.get_world_size()
        self.names = ["cpu"] * self.n_devices
        self.memory = SharedMemory(0)
        self._left = False
        cores = tuple(range(torch.get_num_threads()))
        self._host = _RankHost(cores, self.memory, [], _Barrier())

    @property
    def running(self) -> bool:
        """Says whether this rank is still with the others."""
        return not self._left

    def ask(self, commands: Sequence[tuple[str, *tuple[Any, ...]]]) -> list[Any]:
        """Executes a command on the device of this rank, and gathers the answers of all ranks.

        Raises:
            ExecutionError: this device failed, or another rank has ended or takes too long.
        """
        answer = self._host([commands[self.rank]])
        if answer.failure:
            raise self._failed(answer.failure)
        try:
            return self._exchange(answer.value[0])
        except RuntimeError as error:
            raise self._failed(str(error).splitlines()[0]) from None

    def close(self) -> None:
        """Leaves the process group, if it was made here."""
        self._left = True
        if self._begun and dist.is_initialized():
            dist.destroy_process_group()

    def _failed(self, reason: str) -> ExecutionError:
        self._left = True
        if any(words in reason for words in LOST):
            reason = f"another device has ended; see its message ({reason.partition('. ')[0]})"
        return ExecutionError(f"device {self.rank}: {reason}")

    def _exchange(self, value: Any) -> list[Any]:
        answers: list[Any] = []
        for rank in range(self.n_devices):
            is_ours = rank == self.rank
            content = encode(value) if is_ours else b""
            size = torch.tensor([len(content)])
            dist.broadcast(size, rank)
            raw = torch.frombuffer(bytearray(content), dtype=torch.uint8) if is_ours else _bytes(int(size))
            dist.broadcast(raw, rank)
            answers.append(value if is_ours else decode(raw.numpy().tobytes()))
        return answers


def _bytes(count: int) -> Tensor:
    return torch.empty(count, dtype=torch.uint8)


class _Barrier:
    def wait(self) -> None:
        dist.barrier()


class _RankHost(DeviceHost):
    """The host of a device whose transfers go through torch.distributed; torchrun's caller pins it."""

    def transport(self, task: DeviceTask) -> DistributedTransport:
        return DistributedTransport()

    def pin(self) -> None:
        pass


@dataclass
class DistributedTransport:
    """Sends point to point; a tensor that is sent is kept until the next step begins."""

    _sent: list[tuple[Any, Tensor]] = field(default_factory=list)

    def begin_step(self) -> None:
        """Waits until what was sent in the step before has left."""
        for work, _ in self._sent:
            work.wait()
        self._sent = []

    def send(self, transfer: Transfer, tensor: Tensor) -> None:
        """Begins to send a tensor."""
        for part in _parts(tensor) if transfer.spec.sparse else [tensor]:
            spec = TensorSpec.of(part) if transfer.spec.sparse else transfer.spec
            raw = torch.empty(spec.n_bytes // part.element_size(), dtype=part.dtype)
            raw.as_strided(spec.shape, spec.stride).copy_(part)
            if spec.n_bytes:
                raw = raw.view(torch.uint8)
                self._sent.append((dist.isend(raw, transfer.target, tag=transfer.index), raw))

    def receive(self, transfer: Transfer) -> Tensor:
        """Waits for a tensor."""
        spec = transfer.spec
        if not spec.sparse:
            return self._take(transfer, spec).as_strided(spec.shape, spec.stride)
        count, coalesced = self._take(transfer, _spec_of(2, dtype=torch.int64)).tolist()
        indices = self._take(transfer, _spec_of(1, count, dtype=torch.int64))
        values = self._take(transfer, _spec_of(count, *spec.shape[1:], dtype=spec.dtype))
        return torch.sparse_coo_tensor(
            indices.view(1, count),
            values.view(count, *spec.shape[1:]),
            spec.shape,
            is_coalesced=bool(coalesced),
            check_invariants=False,
        )

    def _take(self, transfer: Transfer, spec: TensorSpec) -> Tensor:
        raw = _bytes(spec.n_bytes)
        if spec.n_bytes:
            dist.recv(raw, transfer.source, tag=transfer.index)
        return raw.view(spec.dtype)


def _parts(tensor: Tensor) -> list[Tensor]:
    """Takes a sparse tensor apart: number of rows and whether they are distinct, indices, values."""
    indices, values = tensor._indices(), tensor._values()
    return [torch.tensor([indices.shape[1], int(tensor.is_coalesced())]), indices, values]


def _spec_of(*shape: int, dtype: torch.dtype) -> TensorSpec:
    return TensorSpec.of(torch.empty(shape, dtype=dtype, device="meta"))
