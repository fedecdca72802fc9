"""Streams and events of CUDA devices: the order in which tensors are made, copied, read and freed."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from envs.runtime.backends.transports import SharedMemoryTransport
from envs.runtime.device_program import TensorSpec, Transfer


class Cuda:
    """The functions of CUDA that are used; tests replace them by a recorder."""

    def count(self) -> int:
        """Returns the number of devices."""
        return torch.cuda.device_count()

    def device(self, name: str) -> torch.device:
        """Returns the torch device of a name such as `cuda:0`."""
        return torch.device(name)

    def seed(self, name: str, seed: int) -> None:
        """Seeds the random numbers of a device."""
        with torch.cuda.device(name):
            torch.cuda.manual_seed(seed)

    def stream(self, name: str) -> Any:
        """Takes a stream from torch's pool, which the default stream is not in and does not wait for."""
        return torch.cuda.Stream(torch.device(name))  # type: ignore[no-untyped-call]

    def event(self, *, timed: bool) -> Any:
        """Makes an event."""
        return torch.cuda.Event(enable_timing=timed)  # type: ignore[no-untyped-call]

    def use(self, stream: Any) -> None:
        """Makes a stream the current one of its device, and its device the current one."""
        torch.cuda.set_stream(stream)

    def keep(self, tensor: Tensor, stream: Any) -> None:
        """Keeps the memory of a freed tensor until a stream has finished its current work."""
        tensor.record_stream(stream)


@dataclass(frozen=True)
class Lane:
    """A device with its two streams.

    Attributes:
        compute: runs all calls and updates of the device, and owns what they make.
        copy: copies what the device sends, and owns what it receives.
        leaving: sends on their way to other processes: an event, and what to signal after it.
    """

    cuda: Cuda
    device: torch.device
    compute: Any
    copy: Any
    leaving: deque[tuple[Any, Transfer]] = field(default_factory=deque)

    @classmethod
    def open(cls, cuda: Cuda, name: str) -> Lane:
        """Makes the streams of a device."""
        return cls(cuda, cuda.device(name), cuda.stream(name), cuda.stream(name))

    def mark(self, stream: Any, *, timed: bool = False) -> Any:
        """Records an event on a stream."""
        event = self.cuda.event(timed=timed)
        event.record(stream)
        return event


class StreamTransport:
    """Moves tensors between the devices of this process by copies, and to and from others by shared memory.

    No call waits for a device, but for `receive` from another process: the copy stream waits by events for
    what it copies, and the receiver's compute stream for the copy.

    Args:
        lanes: lanes of all devices of this process, by device index.
        device: index of the device that sends and receives here.
        arriving: tensors that were sent between devices of this process, each with the event that ends its
            copy, by transfer; shared by their transports.
        shared: moves tensors to and from other processes.
    """

    def __init__(
        self,
        lanes: Mapping[int, Lane],
        device: int,
        arriving: dict[int, tuple[Tensor, Any]],
        shared: SharedMemoryTransport,
    ) -> None:
        self._lanes, self._lane = lanes, lanes[device]
        self._arriving, self._shared = arriving, shared

    def begin_step(self) -> None:
        """Prepares a step; all streams have finished their work."""
        self._shared.begin_step()

    def send(self, transfer: Transfer, tensor: Tensor) -> None:
        """Enqueues a copy on the copy stream, after what the compute stream has to do so far."""
        lane = self._lane
        lane.copy.wait_event(lane.mark(lane.compute))
        if transfer.target in self._lanes:
            target = self._lanes[transfer.target]
            self._arriving[transfer.index] = _copied(tensor, transfer.spec, target, lane.copy)
        else:
            lane.cuda.use(lane.copy)
            self._shared.write(transfer, tensor, non_blocking=True)
            lane.leaving.append((lane.mark(lane.copy), transfer))
        for part in _parts(tensor):
            lane.cuda.keep(part, lane.copy)

    def receive(self, transfer: Transfer) -> Tensor:
        """Makes the compute stream wait for a tensor."""
        lane = self._lane
        if transfer.source in self._lanes:
            tensor, arrived = self._arriving.pop(transfer.index)
        else:
            self.signal(self._lanes.values(), wait=True)  # the sender may wait for one of these
            tensor, arrived = _copied(self._shared.receive(transfer), transfer.spec, lane, lane.copy)
        lane.compute.wait_event(arrived)
        for part in _parts(tensor):
            lane.cuda.keep(part, lane.compute)
        return tensor

    def signal(self, lanes: Iterable[Lane], *, wait: bool) -> None:
        """Tells other processes what has been copied into shared memory.

        Args:
            wait: true to wait for all that is on its way.
        """
        for lane in lanes:
            while lane.leaving and (wait or lane.leaving[0][0].query()):
                event, transfer = lane.leaving.popleft()
                event.synchronize()
                self._shared.signal(transfer)


def _copied(tensor: Tensor, spec: TensorSpec, target: Lane, by: Any) -> tuple[Tensor, Any]:
    """Enqueues a copy of a tensor to a device.

    The copy is allocated on the device's copy stream, which may still have to do with the memory. The current
    streams of both devices are copy streams meanwhile, as `copy_` lets those wait for each other.

    Args:
        by: the copy stream of either device, which does it.

    Returns:
        The copy, and the event that ends it.
    """
    target.cuda.use(target.copy)
    parts = _parts(tensor)
    specs = [TensorSpec.of(part) for part in parts] if spec.sparse else [spec]
    made = [room(room_spec, target.device) for room_spec in specs]
    if by is not target.copy:
        by.wait_event(target.mark(target.copy))
        target.cuda.use(by)
    for out, part in zip(made, parts, strict=True):
        out.copy_(part, non_blocking=True)
    done = target.mark(by)
    if not spec.sparse:
        return made[0], done
    coalesced = tensor.is_coalesced()
    joined = torch.sparse_coo_tensor(
        made[0], made[1], spec.shape, is_coalesced=coalesced, check_invariants=False
    )
    return joined, done


def _parts(tensor: Tensor) -> list[Tensor]:
    return [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]


def room(spec: TensorSpec, device: torch.device) -> Tensor:
    """Allocates a tensor that lies as it did when it was captured, as its views rely on that."""
    return torch.empty_strided(spec.shape, spec.stride, dtype=spec.dtype, device=device)
