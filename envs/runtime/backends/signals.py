"""Signals between the processes of devices: bytes in pipes, which have no name and end with the processes."""

from __future__ import annotations

import os
import select
import sys
import time
from collections import Counter
from collections.abc import Sequence
from multiprocessing import reduction
from typing import Any

SPIN_S = 200e-6
"""Seconds for which a receiver polls before it sleeps; waking up takes a process tens of microseconds."""
SENDER_BYTES = 2
CHUNK_BYTES = 1 << 16


class Inbox:
    """Counts the signals of each sender to one receiver, which may be in different processes.

    Semaphores of `multiprocessing` would have names, which stay when all processes are killed.
    """

    def __init__(self) -> None:
        self._open(os.pipe())

    def _open(self, ends: tuple[int, int]) -> None:
        self._ends = ends
        self._counts: Counter[int] = Counter()
        for end in ends:
            os.set_blocking(end, False)
        self._readable = select.poll()
        self._readable.register(ends[0], select.POLLIN)

    def tell(self, sender: int) -> bool:
        """Adds a signal; returns False if unread signals fill the buffer."""
        try:
            return os.write(self._ends[1], sender.to_bytes(SENDER_BYTES, sys.byteorder)) > 0
        except BlockingIOError:
            return False

    def collect(self) -> bool:
        """Reads all signals; returns whether there were any."""
        try:
            content = os.read(self._ends[0], CHUNK_BYTES)
        except BlockingIOError:
            return False
        self._counts.update(memoryview(content).cast("H"))
        return True

    def take(self, sender: int) -> None:
        """Waits for a signal of a sender, and takes it away."""
        deadline = time.perf_counter() + SPIN_S
        while not self._counts[sender]:
            if not self.collect() and time.perf_counter() > deadline:
                self._readable.poll()
        self._counts[sender] -= 1

    def __getstate__(self) -> dict[str, Any]:
        return {"ends": [reduction.DupFd(end) for end in self._ends]}

    def __setstate__(self, state: dict[str, Any]) -> None:
        read_end, write_end = (end.detach() for end in state["ends"])
        self._open((read_end, write_end))

    def __del__(self) -> None:
        for end in getattr(self, "_ends", ()):
            os.close(end)


class Barrier:
    """A barrier of several processes: each waits until all have come.

    Args:
        inboxes: inboxes of all processes, for the barrier alone.
    """

    def __init__(self, index: int, inboxes: Sequence[Inbox]) -> None:
        self._index, self._inboxes = index, inboxes
        self._others = [other for other in range(len(inboxes)) if other != index]

    def wait(self) -> None:
        """Waits until all processes wait."""
        for other in self._others:
            self._inboxes[other].tell(self._index)
        for other in self._others:
            self._inboxes[self._index].take(other)
