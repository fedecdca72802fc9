"""Episodes over problems, many at a time; both environments are thin views of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.placement import CONSTRUCT, FREE_MEMORY, IMPROVE, MDPS
from envs.placement.generator import Start, on_fastest_device
from envs.placement.masks import NAMED, Mask
from envs.placement.observation.candidates import CandidateScratch, new_candidate_scratch
from envs.placement.observation.observe import new_observation
from envs.placement.packing import PackedProblems, pack_problems
from envs.placement.reward import Reward, simulated
from envs.placement.state import N_DECISIONS, MdpRules, begin_empty, new_episodes, place_all
from envs.placement.transition import FITS, INFEASIBLE, INFEASIBLE_PENALTY, new_step_result, step_episodes
from envs.placement.walk import VisitOrders
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError

if TYPE_CHECKING:
    from envs.problem import Problem

ONLY_OBSERVE = np.array([-1])


class MdpError(InputError):
    """Episodes that cannot be: no problems, nothing to place, or an unknown decision process."""


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        step_time_s: step time of `device_of`, NaN where infeasible.
        ratio_to_single: `step_time_s` over that of the fastest single device.
        fits: whether every device has the memory.
        infeasible: whether the episode ended early, at an op that no device had free memory for.
        device_of: the placement, int (n_ops,); in `improve` the best one seen. -1 where not placed.
    """

    problem: int
    order: str
    step_time_s: float
    ratio_to_single: float
    fits: bool
    infeasible: bool
    device_of: IntArray
    decisions: int
    episode_return: float


@dataclass(frozen=True)
class EpisodeSettings:
    """The decision process of episodes, and the orders that they may visit the ops in.

    Attributes:
        mdp: `construct` places every op once; `improve` moves the ops of a complete placement.
        passes: times that `improve` visits every placement unit.
        start: gives the placement that `improve` starts from.
        mask: which devices are offered: a `Mask`, or its name; "memory" for those with free memory, "none"
            for every one.
        memory_penalty: weight of the penalty for a placement that is out of memory, at least 0.
        reward: says what the step takes under the placement of an episode that ended within the memory.
    """

    orders: Sequence[str] = ("topo",)
    mdp: str = CONSTRUCT
    passes: int = 2
    start: Start = on_fastest_device
    mask: Mask | str = FREE_MEMORY
    memory_penalty: float = 1.0
    reward: Reward = simulated


class EpisodeBatch:
    """`n` episodes over given problems, in step with one another.

    Args:
        problems: what episodes may be over; every one must be feasible on its cluster.
        incremental: use the incremental simulation where it is exact; off, everything is simulated in full.
        rolls_out: fill the features of truncated rollouts in; without, they are 0. `improve` has none.
        threads: number of threads that share the episodes of a step; results do not depend on it.

    Attributes:
        observation: `Observation` of the ops at hand, updated in place by `begin` and `step`.

    Raises:
        MdpError: no problems, a graph without compute ops, an unknown `mdp`, a `mask` that is none for one.
        InfeasibleError: a graph for which no placement is within the memory.
        OrderError: an unknown order.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n: int,
        settings: EpisodeSettings = EpisodeSettings(),
        *,
        incremental: bool = True,
        rolls_out: bool = True,
        threads: int = 1,
    ) -> None:
        _check(problems, settings)
        mask = _mask(settings.mask)
        self.problems = list(problems)
        self.orders = list(settings.orders)
        self.improving = settings.mdp == IMPROVE
        self.passes = settings.passes if self.improving else 1
        self._rules = MdpRules(
            improving=self.improving,
            masks=mask.needs_memory,
            rolls_out=rolls_out and not self.improving,
            memory_penalty=float(settings.memory_penalty),
        )
        self.n = n
        self.max_devices = max(problem.n_devices for problem in problems)
        self.max_ops = max(problem.graph.n_ops for problem in problems)
        self.observation = new_observation(n, self.max_devices)
        self._start, self._incremental = settings.start, incremental
        self._plans = VisitOrders(self.problems, self.orders, improving=self.improving, passes=self.passes)
        self._packed = _packed(problems, mask)
        self._episodes = new_episodes(problems, n, self.passes)
        self._result = new_step_result(n, self.max_devices)
        self._scratches = [new_candidate_scratch(problems) for _ in range(min(threads, n))]
        self._pool = ThreadPoolExecutor(len(self._scratches)) if len(self._scratches) > 1 else None
        self._order_of = np.zeros(n, dtype=np.int64)
        self._reward, self._timed = settings.reward, dict[int, StepTime]()

    def begin(self, episode: int, problem: int, order: int, rng: np.random.Generator) -> None:
        """Begins one episode over a problem in an order (indices), and observes its first op.

        Args:
            rng: used by the order `random` alone.
        """
        given = self.problems[problem]
        visits, is_incremental = self._plans.get(problem, order, rng)
        begin_empty(
            self._episodes, episode, problem, visits, is_incremental=self._incremental and is_incremental
        )
        if self.improving:
            place_all(self._episodes, episode, given, np.asarray(self._start(given), dtype=np.int64))
        self._order_of[episode] = order
        self._timed.pop(episode, None)
        self._loop(step_episodes, episode, self._scratches[0], ONLY_OBSERVE)
        assert not self._result.done[episode], "check_feasible lets no episode begin without free memory"

    def step(self, actions: IntArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Takes one decision in every episode.

        Args:
            actions: device index per episode, int (n,).

        Returns:
            Rewards (n,) and whether each episode is done (n,); begin those anew before the next step.
        """
        self.loop(step_episodes, np.ascontiguousarray(actions, dtype=np.int64))
        return self.rewards, self.done

    def loop(self, kernel: Callable[..., None], each: NDArray[Any], *arguments: object) -> None:
        """Runs a compiled loop over all episodes, divided among the threads.

        Args:
            kernel: as `step_episodes`, with `each` in place of its actions and `arguments` after `result`.
            each: a row for each episode, (n, ...).
        """
        was_done = self.done
        shares = np.array_split(each, len(self._scratches))
        firsts = np.cumsum([0, *map(len, shares)])[:-1].tolist()
        run = partial(self._loop, kernel, arguments=arguments)
        list((self._pool.map if self._pool else map)(run, firsts, self._scratches, shares))
        if self._reward is not simulated:
            for episode in np.flatnonzero(self._result.done & ~was_done).tolist():
                self._time(episode)

    def _time(self, episode: int) -> None:
        """Replaces the simulated step time in the return of an episode that ended by that of the reward."""
        result = self.result(episode)
        if not result.fits:
            return
        step = self._timed[episode] = self._reward(self.problem_of(episode), result.device_of)
        change = -self._rules.memory_penalty * INFEASIBLE_PENALTY
        if step.fits:
            change = result.ratio_to_single - step.total_s / self.problem_of(episode).scale_s
        self._result.reward[episode] += change
        self._episodes.returned[episode] += change

    @property
    def rewards(self) -> NDArray[np.float64]:
        """Returns the reward of the last decision of each episode, (n,)."""
        return self._result.reward.copy()

    @property
    def done(self) -> NDArray[np.bool_]:
        """Says which episodes are done, bool (n,)."""
        return self._result.done.copy()

    def fork(self, source: int, target: int) -> None:
        """Makes one episode a copy of another, its observation included."""
        state = self._episodes
        arrays = [each for name, each in state._asdict().items() if name != "timeline"]
        own = (self._order_of, self._result.outcome, self._result.done)
        for rows in (*arrays, *state.timeline, *self.observation, *own):
            rows[target] = rows[source]

    def time_s(self) -> NDArray[np.float64]:
        """Returns the step time of what each episode has placed so far, in seconds, (n,)."""
        return self._episodes.time_s[:, 0].copy()

    def problem_of(self, episode: int) -> Problem:
        """Returns the problem that one episode is over."""
        return self.problems[int(self._episodes.problem[episode])]

    def device_of(self, episode: int) -> IntArray:
        """Returns the devices decided so far in one episode, int (n_ops,); -1 = not yet."""
        return self._episodes.device_of[episode, : self.problem_of(episode).graph.n_ops].copy()

    def result(self, episode: int) -> EpisodeResult:
        """Returns how an episode that is done ended."""
        problem, outcome = self.problem_of(episode), self._result.outcome[episode]
        step_time_s, device_of = float(self._episodes.time_s[episode, 0]), self.device_of(episode)
        fits, infeasible = bool(outcome == FITS), bool(outcome == INFEASIBLE)
        best_s = float(self._episodes.best_s[episode, 0])
        if self.improving and math.isfinite(best_s):
            step_time_s, infeasible = best_s, False
            device_of = self._episodes.best_device_of[episode, : problem.graph.n_ops].copy()
            fits = simulate_problem(problem, device_of).fits
        if (step := self._timed.get(episode)) is not None:
            step_time_s, fits, infeasible = step.total_s, step.fits, not step.fits
        return EpisodeResult(
            problem=int(self._episodes.problem[episode]),
            order=self.orders[self._order_of[episode]],
            step_time_s=float("nan") if infeasible else step_time_s,
            ratio_to_single=float("nan") if infeasible else step_time_s / problem.scale_s,
            fits=fits,
            infeasible=infeasible,
            device_of=device_of,
            decisions=int(self._episodes.state[episode, N_DECISIONS]),
            episode_return=float(self._episodes.returned[episode]),
        )

    def _loop(
        self,
        kernel: Callable[..., None],
        first: int,
        scratch: CandidateScratch,
        each: NDArray[Any],
        arguments: Sequence[object] = (),
    ) -> None:
        """Runs a compiled loop over the episodes from `first` on."""
        kernel(
            self._packed,
            self._episodes,
            scratch,
            self._rules,
            first,
            each,
            self.observation,
            self._result,
            *arguments,
        )


def _mask(mask: Mask | str) -> Mask:
    if isinstance(mask, str) and mask not in NAMED:
        raise MdpError(f"unknown mask '{mask}'; use one of {', '.join(NAMED)}, or a Mask")
    return NAMED[mask] if isinstance(mask, str) else mask


def _packed(problems: Sequence[Problem], mask: Mask) -> PackedProblems:
    try:
        return pack_problems(problems, mask)
    except ValueError as error:
        raise MdpError(str(error)) from None


def _check(problems: Sequence[Problem], settings: EpisodeSettings) -> None:
    if not problems:
        raise MdpError("no problems to place; give at least one graph and one cluster")
    if settings.mdp not in MDPS:
        raise MdpError(f"unknown mdp '{settings.mdp}'; use one of {', '.join(MDPS)}")
    if not settings.orders:
        raise MdpError("no traversal order; give at least one, e.g. topo")
    for name in settings.orders:
        ORDERS.check(name)
    for problem in problems:
        if not problem.graph.is_compute.any():
            raise MdpError(f"graph '{problem.graph.name}' has only parameters and inputs; nothing to place")
        problem.check_feasible()
