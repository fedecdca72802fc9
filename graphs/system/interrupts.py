"""SIGINT and SIGTERM, put off while something must not stop half-way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from threading import current_thread, main_thread

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Handles the signals that come in the block after it, also where that fails.

    Only the main thread handles signals; in any other the block just runs.
    """
    if current_thread() is not main_thread():
        yield
        return
    came: list[int] = []
    before = [signal.signal(number, lambda number, _: came.append(number)) for number in SIGNALS]
    try:
        yield
    finally:
        for number, handler in zip(SIGNALS, before, strict=True):
            signal.signal(number, handler)
        for late in came:
            signal.raise_signal(late)
