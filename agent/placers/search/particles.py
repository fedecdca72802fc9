"""Resampling of particles: episodes of one problem that visit the same ops in step.

They are those of a sequential Monte Carlo method: the simulated step time of what each has placed is its
weight, and the slow are replaced by copies of the fast.
"""

from __future__ import annotations

from itertools import cycle

import numpy as np
from numpy.typing import NDArray

from envs.mdp.episodes import EpisodeBatch
from graphs.system.array_types import IntArray

RESAMPLE_EVERY, MAX_RESAMPLINGS = 20, 256
"""Decisions between two resamplings; in long episodes, which take long to copy, about so many resamplings."""
RESAMPLED = 4
"""1 / `RESAMPLED` of the particles are replaced each time."""
SUBPOPULATIONS = 4
"""Parts of a large enough group within which particles are compared. Those of one population soon descend
from one; where a choice shows hundreds of ops later, as in a recurrent network, often from a wrong one.
Source: the island particle model, Vergé et al. 2013 (arXiv 1306.3911), without exchange between islands."""


def resampling_interval(n_ops: int) -> int:
    """Returns the decisions between two resamplings of episodes over a graph of `n_ops` ops."""
    return max(RESAMPLE_EVERY, n_ops // MAX_RESAMPLINGS)


def replace_dead_ends(batch: EpisodeBatch, episodes: IntArray, done: NDArray[np.bool_]) -> None:
    """Replaces particles that ended for want of memory by copies of the others, the fastest first.

    Args:
        episodes: of the particles, int (n_particles,).
        done: which of them ended, bool (n_particles,); not all.
    """
    sources = cycle(_fastest_first(batch, episodes[~done]))
    for source, target in zip(sources, episodes[done].tolist(), strict=False):
        batch.fork(source, target)


def replace_slow(batch: EpisodeBatch, episodes: IntArray, is_replaceable: NDArray[np.bool_]) -> None:
    """Replaces the slowest particles of each subpopulation by copies of its fastest.

    Args:
        episodes: of the particles, int (n_particles,).
        is_replaceable: which of them may be replaced, bool (n_particles,).
    """
    may_go = set(episodes[is_replaceable].tolist())
    n_parts = min(SUBPOPULATIONS, max(len(episodes) // RESAMPLED, 1))
    for part in np.array_split(episodes, n_parts):
        fastest_first = _fastest_first(batch, part)
        sources = fastest_first[: len(part) // RESAMPLED]
        for source, target in zip(sources, fastest_first[::-1], strict=False):
            if target in may_go:
                batch.fork(source, target)


def _fastest_first(batch: EpisodeBatch, episodes: IntArray) -> list[int]:
    """Episodes by the step time of what they have placed, the fastest first."""
    fastest_first: list[int] = episodes[np.argsort(batch.time_s()[episodes], kind="stable")].tolist()
    return fastest_first
