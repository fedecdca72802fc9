"""Refreshes files while a run goes on: seldom enough that it takes a small share of the time."""

from __future__ import annotations

import time
from collections.abc import Callable


class Refresher:
    """Calls a function now and then, and less often when it takes long.

    Args:
        every_s: least seconds between the end of a call and the next.
        share: greatest share of the time that the calls may take: after one of t seconds, none is made for
            t / share seconds.
    """

    def __init__(
        self,
        write: Callable[[], None],
        *,
        every_s: float,
        share: float = 0.01,
        first_s: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._write, self._every_s, self._share, self._clock = write, every_s, share, clock
        self._next_s = clock() + first_s

    def poll(self) -> bool:
        """Calls the function if it is time; returns whether it was."""
        began_s = self._clock()
        if began_s < self._next_s:
            return False
        self._write()
        ended_s = self._clock()
        self._next_s = ended_s + max(self._every_s, (ended_s - began_s) / self._share)
        return True
