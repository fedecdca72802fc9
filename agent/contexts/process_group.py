"""A group of workers that torch.distributed joins: gloo between processors, NCCL between GPUs."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.distributed_c10d import PrefixStore, Store

from agent.learn.workers import FIRST
from graphs.system.errors import InputError

PATIENCE = timedelta(days=30)
"""Seconds that a worker waits for another, which may search or evaluate for hours. One that is gone is
noticed at once, as its connections end."""
FAREWELL_S = 5.0
"""Longest time that a worker stays so that the others can read why one failed."""

T = TypeVar("T")


class WorkerLostError(RuntimeError):
    """Another worker failed or ended, so the training cannot continue; the message says which and why."""


class WorkerGoneError(WorkerLostError):
    """Another worker ended without a reason, for example because it was killed."""


class WorkerInputError(InputError):
    """Another worker found the user's input to be wrong; the message is its own."""


FAILURES = {"diverged": FloatingPointError, "input": WorkerInputError, "other": WorkerLostError}
"""Errors that the other workers raise, by the kind of a worker's failure."""


class ProcessGroup:
    """A `WorkerGroup` over the default process group of torch.distributed, which is there already."""

    def __init__(self, store: Store) -> None:
        self.rank, self.size = dist.get_rank(), dist.get_world_size()
        self._store = PrefixStore("placewalk", store)

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Averages float tensors over all workers, in place, in one flat buffer."""
        flat = torch.cat([tensor.reshape(-1) for tensor in tensors])
        self._exchange(lambda: dist.all_reduce(flat))
        flat /= self.size
        first = 0
        for tensor in tensors:
            tensor.copy_(flat[first : first + tensor.numel()].view_as(tensor))
            first += tensor.numel()

    def gather(self, rows: Tensor) -> Tensor:
        """Joins the rows of all workers, those of the first worker first."""
        plain = (rows.view(torch.uint8) if rows.dtype == torch.bool else rows).contiguous()
        parts = [torch.empty_like(plain) for _ in range(self.size)]
        self._exchange(lambda: dist.all_gather(parts, plain))
        return torch.cat(parts).view(rows.dtype)

    def broadcast(self, content: bytes) -> bytes:
        """Returns what the first worker gives."""
        size = torch.tensor([len(content)])
        self._exchange(lambda: dist.broadcast(size, FIRST))
        raw = torch.empty(int(size), dtype=torch.uint8)
        if self.rank == FIRST and content:
            raw = torch.frombuffer(bytearray(content), dtype=torch.uint8)
        if len(raw):
            self._exchange(lambda: dist.broadcast(raw, FIRST))
        return raw.numpy().tobytes()

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """Ends the group; where this worker fails within the block, lets the others fail for its reason."""
        try:
            yield
        except BaseException as error:
            if dist.is_initialized():  # else another worker failed before
                self._end_with_failure(self._describe(error))
            raise
        finally:
            leave()

    def _exchange(self, call: Callable[[], T]) -> T:
        """Makes an exchange; if it fails, raises the error of the worker that failed, if it gave a reason."""
        try:
            return call()
        except RuntimeError as error:  # whose traceback holds the connections
            detail = str(error).splitlines()[0]
        if failure := self._end_with_failure():
            kind, text = json.loads(failure)
            raise FAILURES[kind](text)
        raise WorkerGoneError(f"another worker has ended; see its message ({detail})")

    def _describe(self, error: BaseException) -> str:
        """Returns the kind of a failure of this worker, and what it is to the others, as JSON."""
        if isinstance(error, InputError):
            return json.dumps(["input", str(error)])
        if isinstance(error.__cause__, FloatingPointError):
            return json.dumps(["diverged", f"{error.__cause__} (worker {self.rank})"])
        return json.dumps(["other", f"worker {self.rank} failed: {type(error).__name__}: {error}"])

    def _end_with_failure(self, failure: str = "") -> str:
        """Leaves the group; returns the first failure that was published, which may be this worker's.

        The others stay until the first worker has read it, as torchrun stops all when one ends. The first
        worker, which may hold the store, stays until the others no longer ask it.
        """
        is_first, first_failure = self.rank == FIRST, ""
        awaited = [f"read/{rank}" for rank in range(self.size) if (rank == FIRST) != is_first]
        with suppress(RuntimeError):  # the process that holds the store is gone
            first_failure = self._store.compare_set("failure", "", failure).decode()
        leave()
        with suppress(RuntimeError):
            if first_failure and is_first:
                self._store.set("read/0", "")
            deadline_s = time.monotonic() + FAREWELL_S
            while first_failure and time.monotonic() < deadline_s and not self._store.check(awaited):
                time.sleep(0.02)
            if first_failure and not is_first:
                self._store.set(f"read/{self.rank}", "")
        return first_failure


def leave() -> None:
    """Ends the connections of this process, if there are any."""
    if dist.is_initialized():
        dist.destroy_process_group()


@contextmanager
def joined(rank: int = -1, size: int = -1, address: str = "env://") -> Iterator[ProcessGroup]:
    """Joins the workers of one training; all of them enter, and leave together.

    Args:
        rank, size, address: as `torch.distributed.init_process_group` takes them; by default from the
            environment variables that torchrun sets.
    """
    backend = "cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo"
    if torch.cuda.is_available():
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
    dist.init_process_group(backend, init_method=address, timeout=PATIENCE, rank=rank, world_size=size)
    group = ProcessGroup(dist.distributed_c10d._get_default_store())
    with group.failing_together():
        yield group
