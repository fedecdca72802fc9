"""Collection of rollouts: episodes side by side, in which a policy decides in one compiled loop."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from agent.policy.compiled.head import HeadArrays
from agent.policy.compiled.walk import check_finite_scores, new_walk_state
from agent.training.reinforcement.recording import Decisions, roll_out
from agent.training.step_timer import StepTimer
from agent.training.workers import SOLO, WorkerGroup
from envs.placement.episodes import EpisodeBatch, EpisodeResult
from envs.placement.transition import INFEASIBLE_PENALTY
from envs.problem import Problem
from graphs.system.array_types import IntArray

Heads = Callable[[IntArray], HeadArrays]
"""Returns the head of the policy, with the contexts of some problems, given by index, int (n,)."""


class Beginning(NamedTuple):
    """The draws of one episode: indices of its problem and order, and the seed of a random order."""

    problem: int
    order: int
    seed: int


class Collector:
    """Runs episodes one after another in each of `n_envs` places, and records what a policy decides in them.

    Problems are drawn in rounds: each comes up, in a random sequence, before any comes up again. So larger
    graphs get more decisions, but no more episodes. The n-th episodes of all places are drawn together, so
    that what a place gets does not depend on when the others end.

    Args:
        n_envs: number of places, those of all workers together.
        repeats: how often in a row a problem comes up in a round. Places over one problem stay together, so
            fewer graphs have to be encoded at a time.
        step_timer: measures the step under a complete placement; the return of an episode is minus that, in
            single-device step times. Without it the simulated step time counts.
        group: the workers; each has as many places, and all make the draws of all places.
        arguments: as `EpisodeBatch` takes them.

    Attributes:
        batch: the episodes of the own places.

    Raises:
        MdpError, InfeasibleError, OrderError: as `EpisodeBatch`.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n_envs: int,
        *,
        repeats: int = 1,
        seed: int = 0,
        step_timer: StepTimer | None = None,
        group: WorkerGroup = SOLO,
        memory_penalty: float = 1.0,
        **arguments: Any,
    ) -> None:
        n_own = n_envs // group.size
        self.batch = EpisodeBatch(problems, n_own, memory_penalty=memory_penalty, **arguments)
        self._step_timer, self._penalty = step_timer, memory_penalty * INFEASIBLE_PENALTY
        self._group, self._total = group, n_envs
        self._own = slice(group.rank * n_own, (group.rank + 1) * n_own)
        self._rng, self._repeats = np.random.default_rng(seed), repeats
        self._round: list[int] = []
        self.restart()

    def restart(self) -> None:
        """Gives all unfinished episodes up; others begin in their places.

        After a checkpoint, so that continuing and resuming give the same result: a checkpoint holds no
        unfinished episodes, which would be most of it.
        """
        self._beginnings: list[list[Beginning]] = []
        self._n_begun = np.zeros(self.batch.n, dtype=np.int64)
        self._ended = np.ones(self.batch.n, dtype=np.bool_)

    def state_dict(self) -> dict[str, Any]:
        """Returns what the draws after a restart depend on, as JSON."""
        return {"rng": self._rng.bit_generator.state, "round": list(self._round)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continues the draws where `state_dict` left them, with other episodes in all places.

        Raises:
            LookupError, TypeError, ValueError: the state is not that of a collector over as many problems.
        """
        self._rng.bit_generator.state = state["rng"]
        self._round = list(state["round"])
        if not set(self._round) <= set(range(len(self.batch.problems))):
            raise ValueError(f"a round of problems {self._round} for {len(self.batch.problems)} problems")
        self.restart()

    def collect(self, heads: Heads, decisions: Decisions) -> tuple[list[EpisodeResult], NDArray[np.bool_]]:
        """Takes decisions in every place.

        Args:
            heads: called when episodes have begun.
            decisions: rows to fill; `starts` is 0.

        Returns:
            Results of the episodes that ended, and which places ended one with their last decision, (n_own,).

        Raises:
            FloatingPointError: a score of the policy is NaN or infinite.
        """
        n_steps = len(decisions.op)
        draws = np.ascontiguousarray(self._rng.random((n_steps, self._total))[:, self._own].T)
        n_taken, results = np.zeros(self.batch.n, dtype=np.int64), []
        while (n_taken < n_steps).any():
            for place in np.flatnonzero(self._ended & (n_taken < n_steps)).tolist():
                self._begin(place)
                decisions.starts[n_taken[place], place] = 1.0
            head = heads(np.unique(self.batch.observation.problem))
            state = new_walk_state(head, self.batch)
            before = n_taken.copy()
            self.batch.loop(roll_out, draws, head, state, n_taken, decisions)
            check_finite_scores(state)
            self._ended = self.batch.done
            for place in np.flatnonzero(self._ended & (n_taken > before)).tolist():
                result, correction = self._result(place)
                decisions.reward[n_taken[place] - 1, place] += correction
                results.append(result)
        self._draw(int(self._group.gather(torch.tensor([len(self._beginnings)])).max()))
        return results, self._ended

    def _begin(self, place: int) -> None:
        """Begins the next episode of a place."""
        number = int(self._n_begun[place])
        self._draw(number + 1)
        drawn = self._beginnings[number][self._own.start + place]
        self.batch.begin(place, drawn.problem, drawn.order, np.random.default_rng(drawn.seed))
        self._n_begun[place] += 1

    def _draw(self, n: int) -> None:
        """Draws until each place of all workers has `n` episodes since the last restart."""
        while len(self._beginnings) < n:
            self._beginnings.append([self._beginning() for _ in range(self._total)])

    def _beginning(self) -> Beginning:
        if not self._round:
            self._round = self._rng.permutation(len(self.batch.problems)).repeat(self._repeats).tolist()
        order, seed = int(self._rng.integers(len(self.batch.orders))), int(self._rng.integers(2**63))
        return Beginning(self._round.pop(), order, seed)

    def _result(self, place: int) -> tuple[EpisodeResult, float]:
        """Returns the result of an episode, measured if it is to be, and what its return changes by."""
        result = self.batch.result(place)
        if self._step_timer is None or not result.fits:
            return result, 0.0
        problem = self.batch.problems[result.problem]
        measured_s = self._step_timer(problem, result.device_of)
        if math.isfinite(measured_s):
            ratio = measured_s / problem.scale_s
            correction = result.ratio_to_single - ratio
            timed = replace(result, step_time_s=measured_s, ratio_to_single=ratio)
        else:
            correction, nan = -self._penalty, math.nan
            timed = replace(result, step_time_s=nan, ratio_to_single=nan, fits=False, infeasible=True)
        return replace(timed, episode_return=result.episode_return + correction), correction
