"""The time of this process, on clocks that stand still while numba compiles or loads kernels."""

from __future__ import annotations

import time
from collections.abc import Callable
from threading import Lock
from typing import Any

from numba.core import event

Clock = Callable[[], float]
"""Returns seconds since an arbitrary moment."""


class _Clock(event.Listener):  # type: ignore[misc]
    """Counts seconds, but for those in which some thread holds the lock of numba's compiler."""

    def __init__(self, read: Callable[[], float]) -> None:
        self._read, self._lock, self._n_compiling = read, Lock(), 0
        self._stopped_at_s: float | None = None
        self._stood_still_s = 0.0
        event.register("numba:compiler_lock", self)

    def on_start(self, event: Any) -> None:
        with self._lock:
            self._n_compiling += 1
            if self._n_compiling == 1:
                self._stopped_at_s = self._read()

    def on_end(self, event: Any) -> None:
        with self._lock:
            self._n_compiling -= 1
            if not self._n_compiling and self._stopped_at_s is not None:
                self._stood_still_s += self._read() - self._stopped_at_s
                self._stopped_at_s = None

    def __call__(self) -> float:
        with self._lock:
            now_s = self._read() if self._stopped_at_s is None else self._stopped_at_s
            return now_s - self._stood_still_s


# The functions are looked up at each call, so that tests may replace them.
_WALL, _PROCESSOR = _Clock(lambda: time.perf_counter()), _Clock(lambda: time.process_time())


def running_s() -> float:
    """Returns the wall seconds of this process since an arbitrary moment, without those of compiling."""
    return _WALL()


def running_cpu_s() -> float:
    """Returns the processor seconds of all threads of this process, without those of compiling."""
    return _PROCESSOR()
