"""The work of the ops that run within a window of time (Fernandez and Bussell 1973)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from graphs.system.array_types import FloatArray

WINDOWS = 64
"""Earliest starts at which windows begin."""


class Window(NamedTuple):
    """The ops that start at `since_s` or later and have `after_s` or more after them.

    `least_s` is `since_s`, their work, and `after_s`.
    """

    least_s: float
    since_s: float
    after_s: float


def heaviest_window(work: FloatArray, head: FloatArray, tail: FloatArray) -> Window:
    """Finds, among many windows, the one with the greatest sum of its start, its work and the time after it.

    Args:
        work: seconds of each op, (n_ops,); at least one op.
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """
    longest_tail_first = np.argsort(-tail, kind="stable")
    work, head, tail = work[longest_tail_first], head[longest_tail_first], tail[longest_tail_first]
    starts = np.unique(np.quantile(head, np.linspace(0, 1, WINDOWS), method="lower"))
    inside = head >= starts[:, None]
    window = starts[:, None] + np.where(inside, work, 0.0).cumsum(axis=1) + tail
    start, last = np.unravel_index(np.where(inside, window, -np.inf).argmax(), window.shape)
    return Window(float(window[start, last]), float(starts[start]), float(tail[last]))
