"""Decoding: placements from a policy that takes the best device at every decision, or draws one.

With resampling, the episodes of a problem are particles (`agent.placers.search.particles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agent.placers.completion import complete_placement
from agent.placers.search.particles import replace_dead_ends, replace_slow, resampling_interval
from agent.policy.mdp_config import MdpConfig
from agent.policy.policy import Policy
from agent.policy.starts import episode_arguments
from agent.policy.threads import torch_threads
from agent.policy.walk import TAKE_BEST, CompiledWalk
from envs.mdp.episodes import EpisodeBatch
from envs.mdp.features import FEATURE_SETS, ROLLOUT
from envs.problem import Problem
from graphs.system.array_types import IntArray

WIDTH = 64
"""Episodes decoded side by side."""
MAX_DECISIONS = 256
"""Decisions of an episode that are taken in one compiled call, which no signal interrupts."""


def decode(
    policy: Policy,
    problem: Problem,
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
    resample: bool = False,
    mdp_config: MdpConfig | None = None,
) -> IntArray:
    """Finds placements of one problem.

    Args:
        order: name of the order to visit the ops in.
        n_samples: how many placements to draw.
        rng: source of randomness; without it, one of a fixed seed.
        greedy: whether a placement that takes the best device at every op comes before those drawn.
        resample: whether slow episodes are replaced by copies of fast ones, within subpopulations, and
            those without memory for an op by copies of others. The greedy one is replaced only where it has
            no memory for an op.
        mdp_config: the decision process; by default the policy's own.

    Returns:
        Device of every op, int64 (greedy + n_samples, n_ops). Where no device had memory for an op,
        `complete_placement` places the rest.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
        FloatingPointError: a score of the policy is NaN or infinite.
    """
    return decode_many(
        policy, [problem], order, n_samples, rng, greedy=greedy, resample=resample, mdp_config=mdp_config
    )[0]


def decode_many(
    policy: Policy,
    problems: Sequence[Problem],
    order: str = "topo",
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
    resample: bool = False,
    mdp_config: MdpConfig | None = None,
) -> list[IntArray]:
    """Does what `decode` does for many problems side by side; returns one array per problem."""
    rng = rng or np.random.default_rng(0)
    own = Policy(policy.network)
    own.set_problems(problems)
    draws = [False] * greedy + [True] * n_samples
    groups_of_each = [draws] if resample else [[each] for each in reversed(draws)]
    # The decoder takes the last first: no long episode begins when the others are about to end.
    shortest_first = sorted(range(len(problems)), key=lambda index: problems[index].graph.n_ops)
    drawn = rng.spawn(len(groups_of_each) * len(problems)) if n_samples else []
    groups = [
        Group(index, np.array(each), drawn.pop() if drawn else None)
        for index in shortest_first
        for each in groups_of_each
    ]
    n_slots = min(max(WIDTH // groups[0].size, 1), len(groups))
    rolls_out = ROLLOUT in FEATURE_SETS[policy.network.shape.feature_set]
    arguments = episode_arguments(mdp_config or policy.mdp_config) | {"rolls_out": rolls_out}
    batch = EpisodeBatch(problems, n_slots * groups[0].size, orders=(order,), **arguments)
    found: list[list[IntArray]] = [[] for _ in problems]
    with torch_threads(1):
        walk = CompiledWalk(own, batch)
    for group, placements in ParticleDecoder(walk, batch, groups, rng).run():
        before = found[group.problem]
        before[:] = [*before, *placements] if group.draws[0] else [*placements, *before]
    return [np.stack(placements) for placements in found]


@dataclass(frozen=True, eq=False)
class Group:
    """Particles of one problem that begin together and visit the same ops.

    Attributes:
        problem: its index.
        draws: whether a particle draws its devices, bool (n_particles,); else it takes the best.
        rng: source of drawn devices; None where no particle draws.
    """

    problem: int
    draws: NDArray[np.bool_]
    rng: np.random.Generator | None

    @property
    def size(self) -> int:
        """Number of particles."""
        return len(self.draws)


class ParticleDecoder:
    """Decodes groups of particles, as many groups at a time as the batch has slots for.

    Slot `i` of groups of `n` particles has the episodes `i * n` to `(i + 1) * n - 1` of the batch.

    Args:
        walk: decides in the batch.
        batch: episodes; their number is a multiple of the size of a group.
        groups: what is decoded, the last first; all of one size, and at least as many as slots.
        rng: source of randomness of the order `random`.
    """

    def __init__(
        self, walk: CompiledWalk, batch: EpisodeBatch, groups: Sequence[Group], rng: np.random.Generator
    ) -> None:
        self._walk, self._batch, self._rng = walk, batch, rng
        self._n_groups, self._size = len(groups), groups[0].size
        self._waiting = list(groups)
        n_slots = batch.n // self._size
        self._slots: list[Group | None] = [self._waiting.pop() for _ in range(n_slots)]
        self._n_decisions = np.zeros(n_slots, dtype=np.int64)
        self._found: list[tuple[Group, list[IntArray]]] = []

    def run(self) -> list[tuple[Group, list[IntArray]]]:
        """Decodes all groups.

        Returns:
            Each group with the placements of its particles, int64 (n_ops,) each, in the order they end.
        """
        for slot in range(len(self._slots)):
            self._begin(slot)
        while len(self._found) < self._n_groups:
            self.step()
            done = self._batch.done.reshape(-1, self._size)
            self.resample(done)
            self.finish(done)
        return self._found

    def step(self) -> None:
        """Takes as many decisions in every group as it may before it is resampled."""
        draws = np.full((len(self._slots), self._size, int(self._n_decisions.max())), TAKE_BEST)
        for group, n, own in zip(self._slots, self._n_decisions, draws, strict=True):
            if group is not None and group.rng is not None:
                own[group.draws, :n] = group.rng.random((int(group.draws.sum()), int(n)))
        self._walk.decide(self._n_decisions, draws)

    def resample(self, done: NDArray[np.bool_]) -> None:
        """Replaces particles of groups that are not done: those without memory for an op, and the slow.

        Args:
            done: which particles are done, bool (n_slots, n_particles).
        """
        if self._size == 1:
            return
        for slot in np.flatnonzero(~done.all(axis=1)).tolist():
            group = self._slots[slot]
            assert group is not None
            if done[slot].any():
                replace_dead_ends(self._batch, self._episodes(slot), done[slot])
            replace_slow(self._batch, self._episodes(slot), group.draws)

    def finish(self, done: NDArray[np.bool_]) -> None:
        """Takes the placements of groups that are done and begins others in their slots.

        Args:
            done: which particles are done, bool (n_slots, n_particles).
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
            self._n_decisions[slot] = 0
            return
        first, *others = self._episodes(slot).tolist()
        self._batch.begin(first, group.problem, 0, self._rng)
        for episode in others:
            self._batch.fork(first, episode)
        n_ops = self._batch.problems[group.problem].graph.n_ops
        self._n_decisions[slot] = MAX_DECISIONS if self._size == 1 else resampling_interval(n_ops)

    def _episodes(self, slot: int) -> IntArray:
        return np.arange(slot * self._size, (slot + 1) * self._size)
