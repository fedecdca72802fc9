"""Stands in for CUDA on the CPU: streams and events that do nothing but keep what comes before what.

Every stream has a vector clock: of each stream, the number of its ops that have ended before what comes next.
The host has one too, as it waits for events.
"""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from envs.runtime.backends.cuda.stream_host import StreamHost
from envs.runtime.backends.cuda.streams import Cuda
from envs.runtime.backends.device_process import DeviceHost
from envs.runtime.backends.processes import members_of
from envs.runtime.backends.signals import Inbox
from envs.runtime.backends.transports import SharedMemory

Clock = Counter[str]
"""Number of ended ops by stream."""
JOINS = torch.ops.aten._sparse_coo_tensor_with_dims_and_tensors.default
"""Makes a sparse tensor of its parts, which it does not copy."""


class Stream:
    def __init__(self, cuda: RecordedCuda, device: str, name: str) -> None:
        self.cuda, self.device, self.name = cuda, device, name
        self.clock = Clock()

    def wait_event(self, event: Event) -> None:
        if "wait" not in self.cuda.forgets:
            self.clock |= event.clock

    def synchronize(self) -> None:
        self.cuda.host |= self.clock


class Event:
    def __init__(self, cuda: RecordedCuda) -> None:
        self.cuda = cuda
        self.clock, self.time_s = Clock(), 0.0

    def record(self, stream: Stream) -> None:
        self.clock, self.time_s = Clock(stream.clock), time.perf_counter()

    def synchronize(self) -> None:
        self.cuda.host |= self.clock

    def query(self) -> bool:
        is_complete = "query" not in self.cuda.forgets and self.cuda.rng.random() < 0.3
        if is_complete:
            self.synchronize()
        return is_complete

    def elapsed_time(self, end: Event) -> float:
        return (end.time_s - self.time_s) * 1e3


class RecordedCuda(Cuda):
    """Records the order; `forgets` names what it leaves out: `wait`, `keep`, `query`."""

    def __init__(self, *forgets: str) -> None:
        self.forgets = forgets
        self.rng = random.Random(0)
        self.host = Clock()
        self.streams: list[Stream] = []
        self.current: Stream | None = None
        self.order: Order | None = None

    def count(self) -> int:
        return 3

    def device(self, name: str) -> torch.device:
        return torch.device("cpu")

    def seed(self, name: str, seed: int) -> None:
        torch.manual_seed(seed)

    def stream(self, name: str) -> Stream:
        self.streams.append(Stream(self, name, f"{name}/{len(self.streams)}"))
        return self.streams[-1]

    def event(self, *, timed: bool) -> Event:
        return Event(self)

    def use(self, stream: Stream) -> None:
        self.current = stream
        if self.order:
            self.order.look_for_freed()

    def keep(self, tensor: Tensor, stream: Stream) -> None:
        if self.order and "keep" not in self.forgets:
            for memory in self.order.memory_of(tensor):
                memory.kept.append(stream)


@dataclass
class Memory:
    """What is known of a storage: who allocated it, and who used it when, as (stream, number of the op)."""

    reference: StorageWeakRef
    owner: Stream
    writes: list[tuple[str, int]] = field(default_factory=list)
    reads: list[tuple[str, int]] = field(default_factory=list)
    kept: list[Stream] = field(default_factory=list)


class Order(TorchDispatchMode):
    """Checks, while it is entered, that all is in order by streams, events and waits of the host alone.

    Attributes:
        faults: what is not, in words.
        copies: storages that were copied from device to device, with the devices.
    """

    def __init__(self, cuda: RecordedCuda, shared: Tensor) -> None:
        super().__init__()
        self.cuda, cuda.order = cuda, self
        self.known: dict[int, Memory] = {}
        self.shared = shared
        self.shared_writes: dict[int, tuple[str, int]] = {}
        self.faults: list[str] = []
        self.copies: list[tuple[int, str]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        stream = self.cuda.current
        assert stream
        given = dict(zip((each.name for each in func._schema.arguments), args, strict=False)) | kwargs
        written = {
            each.name for each in func._schema.arguments if each.alias_info and each.alias_info.is_write
        }
        is_view = any(each.alias_info and not each.alias_info.is_write for each in func._schema.returns)
        if is_view or func is JOINS:
            return func(*args, **kwargs)
        stream.clock |= self.cuda.host
        stream.clock[stream.name] += 1
        moves = func is torch.ops.aten.copy_.default
        if moves:
            self._count_copy(args[0], args[1])
        for name, value in given.items():
            for tensor in tree_leaves(value):
                if isinstance(tensor, Tensor):
                    self._access(func, stream, tensor, writes=name in written, moves=moves)
        found = func(*args, **kwargs)
        for tensor in tree_leaves(found):
            if isinstance(tensor, Tensor) and not written:
                self._access(func, stream, tensor, writes=True, moves=False)
        return found

    def look_for_freed(self) -> None:
        """Checks what has been freed since the last look: its memory may be used again at once."""
        for key, memory in list(self.known.items()):
            if memory.reference.expired():
                del self.known[key]
                done = Clock(memory.owner.clock)
                done[memory.owner.name] += 1 << 30
                for stream in memory.kept:
                    done |= stream.clock
                for user, count in memory.reads + memory.writes:
                    if done[user] < count:
                        self.faults.append(f"freed while {user} uses it")

    def memory_of(self, tensor: Tensor) -> list[Memory]:
        parts = [tensor._indices(), tensor._values()] if tensor.is_sparse else [tensor]
        found = []
        for part in parts:
            storage = part.untyped_storage()
            if storage._cdata == self.shared.untyped_storage()._cdata:
                continue
            if storage._cdata not in self.known:
                assert self.cuda.current
                self.known[storage._cdata] = Memory(StorageWeakRef(storage), self.cuda.current)
            found.append(self.known[storage._cdata])
        return found

    def own(self, tensor: Tensor, stream: Stream) -> None:
        """Says on which stream a tensor was allocated before this was entered."""
        for memory in self.memory_of(tensor):
            memory.owner = stream

    def is_over(self) -> bool:
        """Whether the host knows that no stream has anything left to do."""
        return all(stream.clock[stream.name] <= self.cuda.host[stream.name] for stream in self.cuda.streams)

    def has_been_written(self, place: Tensor) -> bool:
        """Whether the host knows that shared memory has been written."""
        stream, count = self.shared_writes[place.data_ptr()]
        return self.cuda.host[stream] >= count

    def _count_copy(self, out: Tensor, tensor: Tensor) -> None:
        for to, origin in zip(self.memory_of(out), self.memory_of(tensor), strict=False):
            if to.owner.device != origin.owner.device:
                self.copies.append((origin.reference.cdata, to.owner.device))

    def _access(self, func: Any, stream: Stream, tensor: Tensor, *, writes: bool, moves: bool) -> None:
        now = (stream.name, stream.clock[stream.name])
        memories = self.memory_of(tensor)
        if not memories and writes:
            self.shared_writes[tensor.data_ptr()] = now
        for memory in memories:
            if memory.owner.device != stream.device and not moves:
                self.faults.append(f"{func} on {stream.name} uses what is on {memory.owner.device}")
            before = memory.writes + (memory.reads if writes else [])
            for user, count in before:
                if stream.clock[user] < count:
                    self.faults.append(f"{func} on {stream.name} does not wait for {user}")
            (memory.writes if writes else memory.reads).append(now)


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
