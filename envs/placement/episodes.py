"""Episodes over problems, many at a time; both environments are thin views of them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.placement import CONSTRUCT, EVERY_DEVICE, FREE_MEMORY, IMPROVE, MDPS
from envs.placement.generator import MdpError, Start, on_fastest_device
from envs.placement.masks import NAMED, Mask
from envs.placement.observation.candidates import CandidateScratch, new_candidate_scratch
from envs.placement.observation.observe import new_observation
from envs.placement.packing import PackedProblems, pack_problems
from envs.placement.reward import Reward, simulated, timed_step
from envs.placement.state import N_DECISIONS, MdpRules, begin_empty, new_episodes, place_all
from envs.placement.transition import FITS, INFEASIBLE, INFEASIBLE_PENALTY, new_step_result, step_episodes
from envs.placement.walk import VisitOrders
from envs.simulator.simulate import StepTime, simulate_problem
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from graphs.system.errors import checked

if TYPE_CHECKING:
    from envs.problem import Problem

ONLY_OBSERVE = np.array([-1])
ENDED = (
    "an episode has ended (info['result'].step_time_s is its StepTime.total_s), or not begun; call reset()"
)


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """The result of one episode.

    Attributes:
        step_time_s: step time of `device_of`, NaN where infeasible.
        ratio_to_single: `step_time_s` over that of the fastest single device.
        fits: true if every device has the memory.
        infeasible: true if the episode ended early, at an op that no device had free memory for.
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
        orders: names of orders, or one name.
        mdp: `construct` places every op once; `improve` moves the ops of a complete placement.
        passes: times that `improve` visits every placement unit.
        start: gives the placement that `improve` starts from.
        mask: devices that are offered: a `Mask`, or its name; "memory" for those with free memory, "none" for
            every one.
        memory_penalty: weight of the penalty for a placement that is out of memory, at least 0.
        reward: says what the step takes under the placement of an episode that ended within the memory.

    Raises:
        MdpError: an argument of another type or out of range, or an unknown name of a process or mask.
    """

    orders: Sequence[str] | str = ("topo",)
    mdp: str = CONSTRUCT
    passes: int = 2
    start: Start = on_fastest_device
    mask: Mask | str = FREE_MEMORY
    memory_penalty: float = 1.0
    reward: Reward = simulated

    def __post_init__(self) -> None:
        checked(MdpError, "orders", self.orders, Sequence, str)
        checked(MdpError, "mdp", self.mdp, str)
        checked(MdpError, "passes", self.passes, int, least=1, most=10_000)
        checked(MdpError, "start", self.start, Callable)
        checked(MdpError, "mask", self.mask, Mask, str)
        checked(MdpError, "memory_penalty", self.memory_penalty, float, least=0, most=10**9)
        checked(MdpError, "reward", self.reward, Callable)
        if self.mdp not in MDPS:
            raise MdpError(f"unknown mdp '{self.mdp}'; use one of {', '.join(MDPS)}")
        if isinstance(self.mask, str) and self.mask not in NAMED:
            raise MdpError(f"unknown mask '{self.mask}'; use one of {', '.join(NAMED)}, or a Mask")

    @classmethod
    def of(cls, arguments: Mapping[str, Any]) -> EpisodeSettings:
        """Makes settings of keyword arguments, none of which may be unknown."""
        names = [item.name for item in fields(cls)]
        if unknown := [name for name in arguments if name not in names]:
            raise MdpError(f"unknown argument '{unknown[0]}'; use {', '.join(names)}")
        return cls(**arguments)


class EpisodeBatch:
    """`n` episodes over given problems, in step with one another.

    Args:
        problems: problems that episodes may be over; each must be feasible on its cluster.
        incremental: use the incremental simulation where it is exact; off, everything is simulated in full.
        rolls_out: fill the features of truncated rollouts in; without, they are 0. `improve` has none.
        threads: number of threads that share the episodes of a step; results do not depend on it.

    Attributes:
        observation: `Observation` of the ops at hand, updated in place by `begin` and `step`.

    Raises:
        MdpError: no problems, a graph without compute ops, a `mask` that is none for one, fewer than one
            episode or thread; later a start, decision or reward that is none.
        InfeasibleError: a graph for which no placement is within the memory.
        OrderError: an unknown order; at the first episode in it, one that does not visit each op once.
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
        self.problems = _checked(problems)
        orders = [settings.orders] if isinstance(settings.orders, str) else settings.orders
        self.orders = [ORDERS.check(checked(MdpError, "an order", name, str)) for name in orders]
        if not self.orders:
            raise MdpError("no traversal order; give at least one, e.g. topo")
        checked(MdpError, "threads", threads, int, least=1)
        mask = NAMED[settings.mask] if isinstance(settings.mask, str) else settings.mask
        self.improving = settings.mdp == IMPROVE
        self.passes = settings.passes if self.improving else 1
        self._rules = MdpRules(
            improving=self.improving,
            masks=mask.needs_memory,
            rolls_out=rolls_out and not self.improving,
            memory_penalty=float(settings.memory_penalty),
        )
        self.n = checked(MdpError, "number of episodes", n, int, least=1)
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
        self._order_of = np.full(n, -1)
        self._reward, self._timed = settings.reward, dict[int, StepTime]()

    def begin(self, episode: int, problem: int, order: int, rng: np.random.Generator) -> None:
        """Begins one episode over a problem in an order (indices), and observes its first op.

        Args:
            rng: used by the order `random` alone.
        """
        checked(MdpError, "order", order, int, least=0, most=len(self.orders) - 1)
        checked(MdpError, "problem", problem, int, least=0, most=len(self.problems) - 1)
        its_problem = self.problems[problem]
        visits, is_incremental = self._plans.get(problem, order, rng)
        begin_empty(
            self._episodes, episode, problem, visits, is_incremental=self._incremental and is_incremental
        )
        if self.improving:
            place_all(self._episodes, episode, its_problem, _first_placement(self._start, its_problem))
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

        Raises:
            MdpError: an episode that has ended or not begun, or a device that is not offered.
        """
        self.loop(step_episodes, self._checked_devices(actions))
        return self.rewards, self.done

    def _checked_devices(self, actions: IntArray) -> IntArray:
        devices, offered = np.asarray(actions), self.observation.mask
        if devices.shape != (self.n,) or devices.dtype.kind not in "iu":
            raise MdpError(f"actions are {devices.dtype} {devices.shape}; give devices, int ({self.n},)")
        over = self._result.done  # those without memory for an op stay where they are
        if ((over & (self._result.outcome != INFEASIBLE)) | (self._order_of < 0)).any():
            raise MdpError(ENDED)
        inside = (devices >= 0) & (devices < self.max_devices)
        refused = ~inside | ~over & (offered[np.arange(self.n), np.where(inside, devices, 0)] == 0)
        if refused.any():
            raise MdpError(
                f"device {devices[refused][0]} is none or has no free memory for the op at hand; use one of "
                f"action_masks(), or mask='{EVERY_DEVICE}' for algorithms that take no masks"
            )
        return np.ascontiguousarray(devices, dtype=np.int64)

    def loop(self, kernel: Callable[..., None], row_of: NDArray[Any], *arguments: object) -> None:
        """Runs a compiled loop over all episodes, divided among the threads.

        Args:
            kernel: `step_episodes`, or one with `row_of` in place of actions and `arguments` after `result`.
            row_of: row for each episode, (n, ...).
        """
        was_done = self.done
        shares = np.array_split(row_of, len(self._scratches))
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
        step = self._timed[episode] = timed_step(self._reward, self.problem_of(episode), result.device_of)
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
        arrays = [array for name, array in state._asdict().items() if name != "timeline"]
        of_batch = (self._order_of, self._result.outcome, self._result.done)
        for rows in (*arrays, *state.timeline, *self.observation, *of_batch):
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
        rows: NDArray[Any],
        arguments: Sequence[object] = (),
    ) -> None:
        """Runs a compiled loop over the episodes from `first` on."""
        kernel(
            self._packed,
            self._episodes,
            scratch,
            self._rules,
            first,
            rows,
            self.observation,
            self._result,
            *arguments,
        )


def _packed(problems: Sequence[Problem], mask: Mask) -> PackedProblems:
    try:
        return pack_problems(problems, mask)
    except ValueError as error:
        raise MdpError(str(error)) from None


def _checked(problems: Sequence[Problem]) -> list[Problem]:
    """Returns problems that can be placed, as a list."""
    checked(MdpError, "problems", problems, Sequence)
    if not problems:
        raise MdpError("no problems to place; give at least one graph and one cluster")
    for problem in problems:
        if not hasattr(problem, "check_feasible"):
            raise MdpError(f"a problem is a {type(problem).__name__}; use Problem(graph, cluster)")
        if not problem.graph.is_compute.any():
            raise MdpError(f"graph '{problem.graph.name}' has only parameters and inputs; nothing to place")
        problem.check_feasible()
    return list(problems)


def _first_placement(start: Start, problem: Problem) -> IntArray:
    """Returns the placement that `improve` starts from, int64 (n_ops,)."""
    device_of, graph = np.asarray(start(problem)), problem.graph
    first_of = graph.units.items[graph.units.ptr[:-1]][graph.unit_of]
    is_right = device_of.shape == first_of.shape and device_of.dtype.kind in "iu"
    is_right = is_right and bool(np.isin(device_of, range(problem.n_devices)).all())
    if not is_right or (device_of != device_of[first_of]).any():
        raise MdpError(
            f"the start of '{graph.name}' is no placement; give each of {graph.n_ops} ops a device from 0 to "
            f"{problem.n_devices - 1}, int, and all ops of a placement unit one device"
        )
    return device_of.astype(np.int64)
