"""Decoding: placements from a policy that takes the best device at every decision, or draws one.

With resampling, the episodes of a problem are particles (`agent.placers.search.particles`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from agent.placers.completion import complete_placement
from agent.placers.search.particles import replace_dead_ends, replace_slow, resampling_interval
from agent.policy.mdp_config import MdpConfig
from agent.policy.policy import Policy
from agent.policy.starts import episode_arguments
from agent.policy.threads import torch_threads
from envs.mdp.episodes import EpisodeBatch
from envs.problem import Problem
from graphs.system.array_types import IntArray

WIDTH = 64
"""Episodes decoded side by side."""
TIE = 1e-4
"""Logits this close are equal and the first device wins, whatever rounding makes of them at other widths."""


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
    generator = torch.Generator().manual_seed(int(rng.integers(2**63))) if n_samples else None
    own = Policy(policy.network)
    own.set_problems(problems)
    draws = [False] * greedy + [True] * n_samples
    groups_of_each = [draws] if resample else [[each] for each in reversed(draws)]
    # The decoder takes the last first: no long episode begins when the others are about to end.
    shortest_first = sorted(range(len(problems)), key=lambda index: problems[index].graph.n_ops)
    groups = [Group(index, np.array(each)) for index in shortest_first for each in groups_of_each]
    n_slots = min(max(WIDTH // groups[0].size, 1), len(groups))
    arguments = episode_arguments(mdp_config or policy.mdp_config)
    batch = EpisodeBatch(problems, n_slots * groups[0].size, orders=(order,), **arguments)
    found: list[list[IntArray]] = [[] for _ in problems]
    with torch_threads(1):
        for group, placements in ParticleDecoder(own, batch, groups, generator, rng).run():
            before = found[group.problem]
            before[:] = [*before, *placements] if group.draws[0] else [*placements, *before]
    return [np.stack(placements) for placements in found]


@dataclass(frozen=True, eq=False)
class Group:
    """Particles of one problem that begin together and visit the same ops.

    Attributes:
        problem: its index.
        draws: whether a particle draws its devices, bool (n_particles,); else it takes the best.
    """

    problem: int
    draws: NDArray[np.bool_]

    @property
    def size(self) -> int:
        """Number of particles."""
        return len(self.draws)


class ParticleDecoder:
    """Decodes groups of particles, as many groups at a time as the batch has slots for.

    Slot `i` of groups of `n` particles has the episodes `i * n` to `(i + 1) * n - 1` of the batch.

    Args:
        policy: scores; its problems are those of the batch.
        batch: episodes; their number is a multiple of the size of a group.
        groups: what is decoded, the last first; all of one size, and at least as many as slots.
        generator: source of drawn devices; None where no particle draws.
        rng: source of randomness of the order `random`.
    """

    def __init__(
        self,
        policy: Policy,
        batch: EpisodeBatch,
        groups: Sequence[Group],
        generator: torch.Generator | None,
        rng: np.random.Generator,
    ) -> None:
        self._policy, self._batch, self._generator, self._rng = policy, batch, generator, rng
        self._n_groups, self._size, self._filler = len(groups), groups[0].size, groups[0]
        self._waiting = list(groups)
        self._slots = [self._waiting.pop() for _ in range(batch.n // self._size)]
        n_slots = len(self._slots)
        self._is_wanted = np.ones(n_slots, dtype=bool)
        self._draws = np.zeros((n_slots, self._size), dtype=bool)
        self._n_decisions = np.zeros(n_slots, dtype=np.int64)
        self._resample_every = np.ones(n_slots, dtype=np.int64)
        self._found: list[tuple[Group, list[IntArray]]] = []

    @torch.inference_mode()
    def run(self) -> list[tuple[Group, list[IntArray]]]:
        """Decodes all groups.

        Returns:
            Each group with the placements of its particles, int64 (n_ops,) each, in the order they end.
        """
        self._policy.encode_all()
        for slot, group in enumerate(self._slots):
            self._begin(slot, group)
        while len(self._found) < self._n_groups:
            done = self.step()
            self.resample(done)
            self.finish(done)
        return self._found

    def step(self) -> NDArray[np.bool_]:
        """Takes one decision in every episode; returns which are done, bool (n_slots, n_particles)."""
        _, done = self._batch.step(self._choose())
        self._n_decisions += 1
        return done.reshape(self._draws.shape)

    def resample(self, done: NDArray[np.bool_]) -> None:
        """Replaces particles of groups that go on: those that are done for want of memory, and the slow.

        Args:
            done: which particles are done, bool (n_slots, n_particles).
        """
        if self._size == 1:
            return
        due = self._n_decisions % self._resample_every == 0
        for slot in np.flatnonzero(~done.all(axis=1) & (done.any(axis=1) | due)).tolist():
            if done[slot].any():
                replace_dead_ends(self._batch, self._episodes(slot), done[slot])
            if due[slot]:
                replace_slow(self._batch, self._episodes(slot), self._draws.ravel())

    def finish(self, done: NDArray[np.bool_]) -> None:
        """Takes the placements of groups that are done and begins others in their slots.

        Args:
            done: which particles are done, bool (n_slots, n_particles).
        """
        for slot in np.flatnonzero(done.all(axis=1)).tolist():
            group = self._slots[slot]
            if self._is_wanted[slot]:
                problem = self._batch.problems[group.problem]
                results = [self._batch.result(episode) for episode in self._episodes(slot).tolist()]
                placements = [complete_placement(problem, result.device_of) for result in results]
                self._found.append((group, placements))
            # Every slot needs episodes to step; when nothing waits, their placements are not wanted.
            self._is_wanted[slot] = bool(self._waiting)
            self._begin(slot, self._waiting.pop() if self._waiting else self._filler)

    def _begin(self, slot: int, group: Group) -> None:
        first, *others = self._episodes(slot).tolist()
        self._batch.begin(first, group.problem, 0, self._rng)
        for episode in others:
            self._batch.fork(first, episode)
        self._slots[slot], self._draws[slot], self._n_decisions[slot] = group, group.draws, 0
        n_ops = self._batch.problems[group.problem].graph.n_ops
        self._resample_every[slot] = resampling_interval(n_ops)

    def _episodes(self, slot: int) -> IntArray:
        return np.arange(slot * self._size, (slot + 1) * self._size)

    def _choose(self) -> NDArray[Any]:
        """Device of each episode's decision, int (n_slots * n_particles,).

        Raises:
            FloatingPointError: a score of the policy is NaN or infinite.
        """
        arrays = self._batch.observation._asdict()
        obs = {name: torch.as_tensor(rows, device=self._policy.device) for name, rows in arrays.items()}
        logits = self._policy.logits(obs).cpu()
        scores = logits.numpy()
        greatest = scores.max(axis=1, keepdims=True)
        if not np.isfinite(greatest).all():
            raise FloatingPointError("the policy's scores are not finite")
        best: NDArray[Any] = np.argmax(scores > greatest - TIE, axis=1)
        if self._generator is None:
            return best
        drawn = torch.multinomial(logits.softmax(1), 1, generator=self._generator).squeeze(1)
        return np.where(self._draws.ravel(), drawn, best)
