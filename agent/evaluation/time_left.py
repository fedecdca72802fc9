"""Estimates how long an evaluation goes on, from the seconds that each placer's trials took so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import timedelta
from statistics import fmean

Run = tuple[str, str]
"""A placer and its order."""


class TimeLeft:
    """Estimates the seconds that the trials which are left take.

    Args:
        tasks: placer and order of every trial of the evaluation, those included that were made before.
        jobs: number of trials that are made at a time.
        budget_s: seconds that a trial may take; None = no limit.
    """

    def __init__(self, tasks: Iterable[Run], jobs: int, budget_s: float | None = None) -> None:
        self._left, self._jobs, self._budget_s = Counter(tasks), jobs, budget_s
        self._taken_s: dict[Run, list[float]] = {}

    def made(self, run: Run, wall_s: float | None) -> None:
        """Takes note of a trial that was made; seconds are None for one that failed."""
        self._left[run] -= 1
        if wall_s is not None:
            self._taken_s.setdefault(run, []).append(wall_s)

    def seconds(self) -> float | None:
        """Estimates the seconds left; None where nothing is known yet.

        A placer's trials take as long as its trials took on average. One without a trial is taken to use up
        the budget of seconds, or, without such a budget, to be as slow as the slowest placer so far.
        """
        if not (n_left := self._left.total()):
            return 0.0
        mean_s = {run: fmean(taken) for run, taken in self._taken_s.items()}
        unknown_s = self._budget_s or max(mean_s.values(), default=None)
        if unknown_s is None:
            return None
        work_s = sum(count * mean_s.get(run, unknown_s) for run, count in self._left.items())
        return work_s / min(self._jobs, n_left)


def clock_text(seconds: float | None) -> str:
    """Writes seconds as h:mm:ss, or dashes where they are not known."""
    return "-:--:--" if seconds is None else str(timedelta(seconds=round(seconds)))
