"""Transports of tensors from the process of one device to that of another."""

from __future__ import annotations

import math
import mmap
import os
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any, Protocol

import torch
from torch import Tensor

from envs.runtime.backends.signals import Inbox
from envs.runtime.device_program import TensorSpec, Transfer

ALIGNMENT = 64
FULL_S = 1e-4
"""Seconds after which a full inbox is tried again."""


class Transport(Protocol):
    """Moves tensors between devices. Both sides name the transfer; a transfer takes place once in a step."""

    def begin_step(self) -> None:
        """Makes ready for a step; all transfers of the step before have been received."""

    def send(self, transfer: Transfer, tensor: Tensor) -> None:
        """Sends a tensor; returns when it may be freed."""

    def receive(self, transfer: Transfer) -> Tensor:
        """Waits for a tensor; it may be read until the step ends."""


class SharedMemory:
    """Memory that processes share: unnamed, so that it vanishes with the last process that holds it.

    Raises:
        OSError: it cannot be had.
    """

    def __init__(self, n_bytes: int) -> None:
        self.n_bytes = max(n_bytes, ALIGNMENT)
        if hasattr(os, "memfd_create"):
            file = os.memfd_create("placewalk")
        else:
            with tempfile.TemporaryFile() as named:
                file = os.dup(named.fileno())
        os.ftruncate(file, self.n_bytes)
        self._map(file)

    def _map(self, file: int) -> None:
        self._file = file
        self.bytes = torch.frombuffer(mmap.mmap(file, self.n_bytes), dtype=torch.uint8)

    def grow(self, n_bytes: int) -> None:
        """Makes the memory larger if it is smaller; tensors from before still hold what they did.

        Raises:
            OSError: it cannot be had.
        """
        if n_bytes > self.n_bytes:
            self.n_bytes = n_bytes
            if os.fstat(self._file).st_size < n_bytes:
                os.ftruncate(self._file, n_bytes)
            self._map(self._file)

    def __getstate__(self) -> dict[str, Any]:
        return {"n_bytes": self.n_bytes, "file": reduction.DupFd(self._file)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.n_bytes = state["n_bytes"]
        self._map(state["file"].detach())

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)

    def tensor(self, spec: TensorSpec, offset: int) -> Tensor:
        """Returns the dense tensor that lies at an offset in bytes, a multiple of `ALIGNMENT`."""
        if not spec.n_bytes:
            return torch.empty(spec.shape, dtype=spec.dtype)
        raw = self.bytes[offset : offset + spec.n_bytes].view(spec.dtype)
        return raw.as_strided(spec.shape, spec.stride)


def offsets_of(specs: Sequence[TensorSpec]) -> tuple[list[int], int]:
    """Lays tensors out one after the other; returns their offsets and the size of all, in bytes."""
    offsets, end = [], 0
    for spec in specs:
        offsets.append(end)
        # A sparse tensor stands behind the number of its rows.
        end += -(-(spec.n_bytes + spec.sparse * ALIGNMENT) // ALIGNMENT) * ALIGNMENT
    return offsets, end


class SharedMemoryTransport:
    """Sends by a copy into shared memory, which the receiver reads in place.

    Args:
        memory: with room for every transfer of a step.
        offsets: offsets of each transfer by its index, in bytes.
        inboxes: inboxes of the devices, which count the tensors sent.
    """

    def __init__(self, memory: SharedMemory, offsets: Sequence[int], inboxes: Sequence[Inbox]) -> None:
        self._memory, self._offsets, self._inboxes = memory, offsets, inboxes
        self._received: Counter[tuple[int, int]] = Counter()
        self._tensors: dict[int, Tensor] = {}

    def begin_step(self) -> None:
        """Makes ready for a step; all transfers of the step before have been received."""
        self._received.clear()

    def send(self, transfer: Transfer, tensor: Tensor) -> None:
        """Copies a tensor into its place and signals it."""
        self.write(transfer, tensor)
        self.signal(transfer)

    def write(self, transfer: Transfer, tensor: Tensor, *, non_blocking: bool = False) -> None:
        """Copies a tensor into its place; one of a GPU that is dense may still be on its way afterwards."""
        if transfer.spec.sparse:
            self._write_sparse(transfer, tensor)
        else:
            self._place(transfer).copy_(tensor, non_blocking=non_blocking)

    def signal(self, transfer: Transfer) -> None:
        """Tells the receiver that a tensor is in its place."""
        while not self._inboxes[transfer.target].tell(transfer.source):
            self._inboxes[transfer.source].collect()  # as the target may itself wait for room
            time.sleep(FULL_S)

    def receive(self, transfer: Transfer) -> Tensor:
        """Waits until a tensor and all that were sent before it from the same device are there."""
        pair = transfer.source, transfer.target
        while self._received[pair] <= transfer.rank:
            self._inboxes[transfer.target].take(transfer.source)
            self._received[pair] += 1
        return self._read_sparse(transfer) if transfer.spec.sparse else self._place(transfer)

    def _place(self, transfer: Transfer) -> Tensor:
        if transfer.index not in self._tensors:
            offset = self._offsets[transfer.index]
            self._tensors[transfer.index] = self._memory.tensor(transfer.spec, offset)
        return self._tensors[transfer.index]

    def _write_sparse(self, transfer: Transfer, tensor: Tensor) -> None:
        indices, values = tensor._indices().contiguous(), tensor._values().contiguous()
        header, rest = self._sparse_place(transfer)
        header.copy_(torch.tensor([indices.shape[1], int(tensor.is_coalesced())]))
        for part in (indices, values):
            raw = part.view(-1).view(torch.uint8)
            rest[: len(raw)].copy_(raw)
            rest = rest[len(raw) :]

    def _read_sparse(self, transfer: Transfer) -> Tensor:
        shape, dtype = transfer.spec.shape, transfer.spec.dtype
        header, rest = self._sparse_place(transfer)
        count, coalesced = header.tolist()
        n_index_bytes = 8 * count  # the gradient of a table has one sparse dimension
        end = n_index_bytes + count * math.prod(shape[1:]) * dtype.itemsize
        indices = rest[:n_index_bytes].view(torch.int64).view(1, count)
        # Copied, as they need not be aligned for their type.
        values = rest[n_index_bytes:end].clone().view(dtype).view(count, *shape[1:])
        return torch.sparse_coo_tensor(
            indices, values, shape, is_coalesced=bool(coalesced), check_invariants=False
        )

    def _sparse_place(self, transfer: Transfer) -> tuple[Tensor, Tensor]:
        offset = self._offsets[transfer.index]
        header = self._memory.bytes[offset : offset + 16].view(torch.int64)
        start = offset + ALIGNMENT
        return header, self._memory.bytes[start : start + transfer.spec.n_bytes]
