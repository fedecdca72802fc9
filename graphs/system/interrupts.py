"""SIGINT and SIGTERM, handled otherwise for a block, or put off while something must not stop half-way."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import current_thread, main_thread
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)

Handler = Callable[[int, FrameType | None], Any]


@contextmanager
def handled_by(handler: Handler, signals: Sequence[signal.Signals] = SIGNALS) -> Iterator[None]:
    """Gives signals to a handler while the block runs.

    Only the main thread handles signals; in any other the block just runs.
    """
    if current_thread() is not main_thread():
        yield
        return
    before = [signal.signal(number, handler) for number in signals]
    try:
        yield
    finally:
        for number, earlier in zip(signals, before, strict=True):
            signal.signal(number, earlier)


@contextmanager
def interrupts_put_off() -> Iterator[None]:
    """Handles the signals that come in the block after it, also where that fails."""
    came: list[int] = []
    try:
        with handled_by(lambda number, _: came.append(number)):
            yield
    finally:
        for late in came:
            signal.raise_signal(late)
