"""The workers that train one policy together, and their messages; one process is a group of one.

Every method is a collective: all workers call it at the same point of the training, or all wait.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor

from graphs.system.json_files import write_bytes_atomic

FIRST = 0
"""Rank of the worker that evaluates, selects and writes."""


class WorkersDifferError(RuntimeError):
    """Workers that should hold the same weights hold different ones; the message says which."""


class WorkerGroup(Protocol):
    """Interface to the workers of one training.

    Attributes:
        rank: number of this worker, from 0.
    """

    rank: int
    size: int

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Averages float tensors over all workers, in place and in one exchange."""

    def gather(self, rows: Tensor) -> Tensor:
        """Joins the rows of all workers, which have as many each; those of the first worker come first."""

    def broadcast(self, content: bytes) -> bytes:
        """Returns what the first worker gives; what others give is ignored."""


class SoloGroup:
    """A group of one worker: nothing is exchanged, and nothing is changed."""

    rank, size = FIRST, 1

    def average_(self, tensors: Sequence[Tensor]) -> None:
        """Leaves the tensors as they are."""

    def gather(self, rows: Tensor) -> Tensor:
        """Returns the rows."""
        return rows

    def broadcast(self, content: bytes) -> bytes:
        """Returns the content."""
        return content


SOLO = SoloGroup()


def share_file(group: WorkerGroup, path: Path) -> None:
    """Gives the first worker's file, if there is one, to all workers, under a path of their own."""
    if group.size == 1:
        return
    there = group.rank == FIRST and path.exists()
    content = group.broadcast(path.read_bytes() if there else b"")
    if content and group.rank != FIRST:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_bytes_atomic(path, content)


def any_worker(group: WorkerGroup, flag: bool) -> bool:
    """Says whether a flag is set on any worker."""
    return bool(group.gather(torch.tensor([flag])).any())


def time_of_first(group: WorkerGroup, seconds: float) -> float:
    """Returns the seconds that the first worker gives."""
    return float.fromhex(group.broadcast(seconds.hex().encode()).decode())


def average_gradients(group: WorkerGroup, weights: Iterable[Tensor]) -> None:
    """Averages the gradients of all workers, in one exchange; a missing one counts as 0."""
    if group.size == 1:
        return
    gradients = []
    for weight in weights:
        if weight.grad is None:
            weight.grad = torch.zeros_like(weight)
        gradients.append(weight.grad)
    group.average_(gradients)


def check_same(group: WorkerGroup, tensors: Iterable[Tensor]) -> None:
    """Checks that tensors are the same, bit by bit, on all workers, by exchanging a hash of them.

    Raises:
        WorkersDifferError: they are not; on every worker.
    """
    if group.size == 1:
        return
    digest = hashlib.sha256()
    for tensor in tensors:
        digest.update(tensor.detach().cpu().contiguous().numpy().tobytes())
    digests = group.gather(torch.tensor([list(digest.digest())], dtype=torch.uint8))
    other = [str(rank) for rank, row in enumerate(digests) if not torch.equal(row, digests[FIRST])]
    if other:
        raise WorkersDifferError(
            f"the weights of worker {', '.join(other)} differ from those of worker {FIRST}; start all "
            "workers with the same versions, settings and --threads, on machines of one kind"
        )
