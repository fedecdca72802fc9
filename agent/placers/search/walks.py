"""Walks: episodes that a compiled rule or a policy decides, alone or in groups of particles."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import cycle
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from agent.placers.memory_limits import complete_placement
from envs.placement.episodes import EpisodeBatch
from graphs.system.array_types import IntArray
from graphs.system.running_time import Clock, running_s

TAKE_BEST = -1.0
"""The draw of a decision that takes the best device."""
MAX_DECISIONS, FIRST_DECISIONS = 256, 32
"""Decisions of a group in one compiled call, which no signal or clock interrupts: the maximum, and those of
the first call if a single episode has a time limit. Calls double in size, so that its pace is known early."""
PACED_CALLS = 3
"""Last ends of calls that the pace is taken from: decisions of the backward pass take up to twice as long."""
RESAMPLE_EVERY, MAX_RESAMPLINGS = 20, 256
"""Decisions between two resamplings; in long episodes, which take long to copy, about so many resamplings."""
RESAMPLED = 4
"""1 / `RESAMPLED` of the particles are replaced each time."""
SUBPOPULATIONS = 4
"""Parts of a large enough group within which particles are compared. Those of one population soon descend
from one; where a choice shows hundreds of ops later, as in a recurrent network, often from a wrong one.
Source: the island particle model, Vergé et al. 2013 (arXiv 1306.3911), without exchange between islands."""


class WalkTooLongError(RuntimeError):
    """Walks that would not end within their limit of seconds.

    Attributes:
        all_s: seconds that they would take, by the pace of the decisions so far.
    """

    def __init__(self, all_s: float) -> None:
        super().__init__(f"walks of {all_s:.3g} s")
        self.all_s = all_s


class Decider(Protocol):
    """A rule or a policy that decides in the episodes of a batch."""

    def decide(self, n_decisions: IntArray, draws: NDArray[np.float64]) -> None:
        """Takes some decisions in groups of episodes.

        A group takes fewer where all its episodes are done, or one ended for want of memory.

        Args:
            n_decisions: number for each group, int (n_groups,), at most `n_draws`.
            draws: uniform numbers from 0 to 1 with which a device is drawn, (n_groups, n_episodes, n_draws);
                `TAKE_BEST` takes the best. The groups are all episodes of the batch, one after the other.

        Raises:
            FloatingPointError: a score is NaN or infinite.
        """


@dataclass(frozen=True, eq=False)
class Group:
    """Episodes of one problem that begin together and visit the same ops.

    Attributes:
        draws: True for each episode that draws its devices, bool (n_episodes,); others take the best.
        rng: source of drawn devices; None where no episode draws.
        resamples: slow episodes are replaced by copies of fast ones, and those without memory for an op by
            copies of others.
    """

    problem: int
    draws: NDArray[np.bool_]
    rng: np.random.Generator | None
    resamples: bool = False

    @property
    def size(self) -> int:
        """Number of episodes."""
        return len(self.draws)


class GroupWalk:
    """Walks groups of episodes to their ends, as many groups at a time as the batch has slots for.

    Slot `i` of groups of `n` episodes has the episodes `i * n` to `(i + 1) * n - 1` of the batch.

    Args:
        batch: episodes; their number is a multiple of the size of a group.
        groups: groups to walk, the last first; all of one size, and at least as many as slots.
        rng: source of randomness of the order `random`.
    """

    def __init__(
        self, decider: Decider, batch: EpisodeBatch, groups: Sequence[Group], rng: np.random.Generator
    ) -> None:
        self._decider, self._batch, self._rng = decider, batch, rng
        self._size, self._waiting = groups[0].size, list(groups)
        n_slots = batch.n // self._size
        self._slots: list[Group | None] = [self._waiting.pop() for _ in range(n_slots)]
        self._n_next, self._n_until_resampled = np.zeros((2, n_slots), dtype=np.int64)
        self._n_all = batch.passes * sum(len(batch.problems[group.problem].graph.units) for group in groups)
        self._n_groups, self._n_taken, self._n_at_once = len(groups), 0, MAX_DECISIONS
        self._found: list[tuple[Group, list[IntArray]]] = []

    def run(self, limit_s: float = np.inf, clock: Clock = running_s) -> list[tuple[Group, list[IntArray]]]:
        """Walks all groups.

        Args:
            limit_s: seconds that the walks may take.
            clock: counts these seconds.

        Returns:
            Each group with the placements of its episodes, int64 (n_ops,) each, in the order they end.

        Raises:
            WalkTooLongError: they would not end in time.
            FloatingPointError: see `Decider.decide`.
        """
        began_s, ends = clock(), deque[tuple[float, int]](maxlen=PACED_CALLS)
        if limit_s < np.inf and self._size == 1:
            self._n_at_once = FIRST_DECISIONS
        for slot in range(len(self._slots)):
            self._begin(slot)
        while len(self._found) < self._n_groups:
            self.step()
            done = self._batch.done.reshape(-1, self._size)
            self.resample(done)
            self.finish(done)
            ends.append((clock() - began_s, self._n_taken))
            (before_s, n_before), (taken_s, n_taken) = ends[0], ends[-1]
            pace_s = (taken_s - before_s) / max(n_taken - n_before, 1)
            all_s = taken_s + pace_s * (self._n_all - n_taken)
            if all_s > limit_s and (n_before < n_taken or len(self._found) == self._n_groups):
                raise WalkTooLongError(all_s)
        return self._found

    def step(self) -> None:
        """Takes decisions in every group, at most as many as it may before it is resampled."""
        most = max(self._n_at_once // self._size, 1)
        self._n_at_once = min(2 * self._n_at_once, MAX_DECISIONS)
        np.minimum(self._n_until_resampled, most, out=self._n_next)
        draws = np.full((len(self._slots), self._size, int(self._n_next.max())), TAKE_BEST)
        for group, n, numbers in zip(self._slots, self._n_next, draws, strict=True):
            if group is not None and group.rng is not None:
                numbers[group.draws, :n] = group.rng.random((int(group.draws.sum()), int(n)))
        self._decider.decide(self._n_next, draws)
        self._n_until_resampled -= self._n_next
        self._n_taken += int(self._n_next.sum())

    def resample(self, done: NDArray[np.bool_]) -> None:
        """Replaces episodes of groups that are not done: those without memory for an op, and the slow.

        Args:
            done: True for episodes that are done, bool (n_slots, n_episodes).
        """
        for slot in np.flatnonzero(~done.all(axis=1)).tolist():
            group = self._slots[slot]
            assert group is not None
            if group.resamples and done[slot].any():
                replace_dead_ends(self._batch, self._episodes(slot), done[slot])
            if not self._n_until_resampled[slot]:
                if group.resamples:
                    replace_slow(self._batch, self._episodes(slot), group.draws)
                self._n_until_resampled[slot] = self._interval(group)

    def finish(self, done: NDArray[np.bool_]) -> None:
        """Takes the placements of groups that are done and begins others in their slots.

        Args:
            done: True for episodes that are done, bool (n_slots, n_episodes).
        """
        for slot in np.flatnonzero(done.all(axis=1)).tolist():
            group = self._slots[slot]
            if group is None:
                continue
            problem = self._batch.problems[group.problem]
            results = [self._batch.result(episode) for episode in self._episodes(slot).tolist()]
            placements = [complete_placement(problem, result.device_of) for result in results]
            self._found.append((group, placements))
            self._slots[slot] = self._waiting.pop() if self._waiting else None
            self._begin(slot)

    def _begin(self, slot: int) -> None:
        """Begins the episodes of a slot's group; a slot without one stays done."""
        group = self._slots[slot]
        if group is None:
            self._n_until_resampled[slot] = 0
            return
        first, *others = self._episodes(slot).tolist()
        self._batch.begin(first, group.problem, 0, self._rng)
        for episode in others:
            self._batch.fork(first, episode)
        self._n_until_resampled[slot] = self._interval(group)

    def _interval(self, group: Group) -> int:
        """Returns the decisions until the group is resampled."""
        n_ops = self._batch.problems[group.problem].graph.n_ops
        return max(RESAMPLE_EVERY, n_ops // MAX_RESAMPLINGS) if group.resamples else MAX_DECISIONS

    def _episodes(self, slot: int) -> IntArray:
        return np.arange(slot * self._size, (slot + 1) * self._size)


def replace_dead_ends(batch: EpisodeBatch, episodes: IntArray, done: NDArray[np.bool_]) -> None:
    """Replaces particles that ended for want of memory by copies of the others, the fastest first.

    Args:
        episodes: episodes of the particles, int (n_particles,).
        done: True for those that ended, bool (n_particles,); not all.
    """
    sources = cycle(_fastest_first(batch, episodes[~done]))
    for source, target in zip(sources, episodes[done].tolist(), strict=False):
        batch.fork(source, target)


def replace_slow(batch: EpisodeBatch, episodes: IntArray, is_replaceable: NDArray[np.bool_]) -> None:
    """Replaces the slowest particles of each subpopulation by copies of its fastest.

    Args:
        episodes: episodes of the particles, int (n_particles,).
        is_replaceable: True for those that may be replaced, bool (n_particles,).
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
    return episodes[np.argsort(batch.time_s()[episodes], kind="stable")].tolist()
