"""The time of a training, shared out over its phases."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from graphs.system.running_time import running_cpu_s, running_s


class Elapsed(NamedTuple):
    """The time that a training has taken, before interruptions too."""

    wall_s: float
    cpu_s: float  # processor seconds of this process and its earlier ones, without compiling


class Clock:
    """Counts wall time without interruptions and compiling, and says when each phase has used up its part.

    The phases end one after the other: what one leaves unused, the next ones have.

    Args:
        limit_s: seconds that the whole training may take; infinite without a limit.
        agreed: from the time of this worker, the one that all workers of a group go by; it is asked by
            `agree` alone, and the time stands still in between. Without it the clock runs.
    """

    def __init__(self, limit_s: float, agreed: Callable[[float], float] | None = None) -> None:
        self._began, self._cpu_began = running_s(), running_cpu_s()
        self._agreed = agreed
        self._agreed_s = 0.0
        self._limit_s = limit_s
        self._end_s: dict[str, float] = {}

    def share_out(self, shares: Mapping[str, float]) -> None:
        """Gives each phase its part of the time.

        Args:
            shares: by name, in the order of the phases; they are scaled to sum to 1, so that phases that are
                left out give theirs away.
        """
        total, ended = sum(shares.values()), 0.0
        for name, share in shares.items():
            ended += share
            self._end_s[name] = self._limit_s * min(ended / total, 1.0)

    @property
    def wall_s(self) -> float:
        """Seconds that the training has taken, those before interruptions included."""
        return self._agreed_s if self._agreed else running_s() - self._began

    @property
    def elapsed(self) -> Elapsed:
        """Returns the time that the training has taken."""
        return Elapsed(self.wall_s, running_cpu_s() - self._cpu_began)

    def agree(self) -> None:
        """Makes all workers of a group agree on the time; each calls it at the same point."""
        if self._agreed is not None:
            self._agreed_s = self._agreed(running_s() - self._began)

    @property
    def progress(self) -> float:
        """Share of the whole time that has passed, 0 to 1; 0 where there is no limit."""
        return min(self.wall_s / self._limit_s, 1.0)

    def go_on_from(self, elapsed: Elapsed) -> None:
        """Counts on from what a training had taken when it was interrupted."""
        self._began = running_s() - elapsed.wall_s
        self._cpu_began = running_cpu_s() - elapsed.cpu_s
        self._agreed_s = elapsed.wall_s

    @property
    def all_left_s(self) -> float:
        """Seconds until the whole training has to end, negative where that has passed."""
        return self._limit_s - self.wall_s

    def left_s(self, phase: str) -> float:
        """Seconds until a phase has to end, negative where that has passed; infinite without a limit."""
        return self._end_s[phase] - self.wall_s

    def progress_since(self, begun_s: float, phase: str) -> float:
        """Share of a phase's time that has passed, 0 to 1, if it began at `begun_s`; 0 without a limit."""
        allotted_s = self._end_s[phase] - begun_s
        if allotted_s <= 0:
            return 1.0
        return min((self.wall_s - begun_s) / allotted_s, 1.0)


def between(first: float, last: float, progress: float) -> float:
    """Linear interpolation of a schedule at a progress of 0 to 1."""
    return first + (last - first) * progress
