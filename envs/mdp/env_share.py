"""The part of a set of episodes that one process runs, where several processes run the set together."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Gather = Callable[[NDArray[np.bool_]], NDArray[np.bool_]]
"""From whether each own episode is done, bool (n,), to the same of all episodes, bool (total,)."""


@dataclass(frozen=True)
class EnvShare:
    """The episodes of a set that run here; all processes draw the problems of all of them alike.

    Attributes:
        first: index of the first own episode in the set.
        total: episodes of the set.
        gather: tells every process which episodes are done, at every step.
    """

    first: int
    total: int
    gather: Gather

    @classmethod
    def whole(cls, total: int) -> EnvShare:
        """All episodes, run in one process."""
        return cls(0, total, lambda done: done)
