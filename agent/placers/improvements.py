"""The improvements of a search: when its best feasible placement got better, and how good it was then."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

MOST = 64
"""Improvements that are kept. Of a longer record every second is dropped, but never the first or the last."""


class Improvement(NamedTuple):
    """A new best feasible placement.

    Attributes:
        evaluations: complete placements that were simulated until then.
        seconds: time since the search began, by the clock of its budget.
    """

    evaluations: int
    seconds: float
    step_time_s: float


class Improvements:
    """The improvements of one search, thinned to at most `MOST`; step times fall from each to the next."""

    def __init__(self) -> None:
        self._kept: list[Improvement] = []

    def add(self, evaluations: int, seconds: float, step_time_s: float) -> None:
        """Add a feasible placement if it is faster than the last one; others change nothing.

        The clock goes back when a kernel was loaded, whose seconds do not count: none before is later.
        """
        if self._kept and step_time_s >= self._kept[-1].step_time_s:
            return
        if self._kept and seconds < self._kept[-1].seconds:
            self._kept = [
                improvement._replace(seconds=min(improvement.seconds, seconds)) for improvement in self._kept
            ]
        if len(self._kept) == MOST:
            self._kept = [*self._kept[:-1:2], self._kept[-1]]
        self._kept.append(Improvement(evaluations, seconds, step_time_s))

    def add_later(self, others: Iterable[Improvement], evaluations: int, seconds: float) -> None:
        """Adds those of a search that started after the given evaluations and seconds of this one."""
        for other in others:
            self.add(evaluations + other.evaluations, seconds + other.seconds, other.step_time_s)

    def all(self) -> tuple[Improvement, ...]:
        """Returns the improvements that are kept, in their order."""
        return tuple(self._kept)
