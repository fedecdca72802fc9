"""Episodes: walks over problems, many at a time, of which both environments are thin views."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.mdp import MDPS
from envs.mdp.features import N_DEVICE_FEATURES
from envs.mdp.observation import Trial
from envs.mdp.state import (
    FITS,
    INFEASIBLE,
    Observation,
    new_episodes,
    new_trial,
    pack_problems,
    step_episodes,
)
from envs.problem import Problem
from envs.simulator.kernels import PROGRAM, run_many
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import IntArray
from graphs.orders import get_order

ONLY_OBSERVE = np.array([-1])


class MdpError(ValueError):
    """A walk that cannot be made: no problems, nothing to place, or an unknown kind of decision process."""


@dataclass(frozen=True, eq=False)
class EpisodeResult:
    """How one episode ended.

    Attributes:
        problem: index of the problem.
        order: name of the order walked.
        step_time_s: step time of `device_of`, NaN where infeasible.
        ratio_to_single: `step_time_s` over that of the fastest single device.
        fits: whether every device has the memory.
        infeasible: whether an op had no device with room for it.
        device_of: the placement, int (n_ops,); in `improve` the best one seen. -1 where not placed.
        decisions: decisions taken.
        episode_return: sum of rewards.
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


Start = Callable[[Problem], IntArray]
"""Gives the placement that an `improve` episode starts from, int (n_ops,)."""


def on_fastest_device(problem: Problem) -> IntArray:
    """Every op on the device that is fastest alone; where it overflows, so be it."""
    return np.full(problem.graph.n_ops, int(np.argmin(problem.single_device_s)), dtype=np.int64)


class EpisodeBatch:
    """MdpConfig `n` episodes over given problems in step with one another.

    Args:
        problems: what may be drawn; every one needs room in its cluster.
        n: number of episodes side by side.
        orders: names of traversal orders; each episode draws one.
        mdp: `construct` places every op once; `improve` moves the ops of the placement that `start` gives,
            `passes` times over.
        incremental: use the incremental simulation where it is exact; off, everything is simulated in full.
        threads: how many share the episodes of a step; what comes out does not depend on it.

    Raises:
        MdpError: no problems, a graph without compute ops, an unknown `mdp`.
        InfeasibleError: a graph that fits nowhere.
        OrderError: an unknown order.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        n: int,
        *,
        orders: Sequence[str] = ("topo",),
        mdp: str = "construct",
        passes: int = 2,
        start: Start = on_fastest_device,
        incremental: bool = True,
        threads: int = 1,
    ) -> None:
        _check(problems, orders, mdp)
        self.problems = list(problems)
        self.orders = list(orders)
        self.improving = mdp == "improve"
        self.n = n
        self._start, self._passes, self._incremental = start, passes if self.improving else 1, incremental
        self.max_devices = max(problem.n_devices for problem in problems)
        self.max_ops = max(problem.graph.n_ops for problem in problems)
        self._bank = pack_problems(problems)
        self._episodes = new_episodes(problems, n, self._passes)
        self._trials = [new_trial(problems) for _ in range(min(threads, n))]
        self._pool = ThreadPoolExecutor(len(self._trials)) if len(self._trials) > 1 else None
        self.observation = Observation(
            problem=np.zeros((n, 1), dtype=np.int64),
            op=np.zeros((n, 1), dtype=np.int64),
            devices=np.zeros((n, self.max_devices, N_DEVICE_FEATURES), dtype=np.float32),
            mask=np.ones((n, self.max_devices), dtype=np.int8),
        )
        self._reward, self._over = np.zeros(n), np.zeros(n, dtype=np.bool_)
        self._outcome = np.zeros(n, dtype=np.int64)
        self._peak = np.zeros((n, self.max_devices))
        self._order_of = np.zeros(n, dtype=np.int64)
        self._decisions, self._returns = np.zeros(n, dtype=np.int64), np.zeros(n)
        self._best: list[tuple[float, IntArray] | None] = [None] * n
        self._walks: dict[tuple[int, int], IntArray] = {}
        self._exact: dict[tuple[int, int], bool] = {}

    def begin(self, episode: int, problem: int, order: int, rng: np.random.Generator) -> None:
        """Start one episode over a problem in an order (indices), and observe its first op.

        Args:
            rng: used by the order `random` alone.
        """
        state, p = self._episodes, self.problems[problem]
        walk = self._walk(problem, order, rng)
        state.problem[episode], state.n_visits[episode] = problem, len(walk)
        state.walk[episode, : len(walk)] = walk
        state.timeline.finish[episode] = 0.0
        state.timeline.sent[episode] = state.timeline.arrival[episode] = -1.0
        state.timeline.device_free[episode] = state.timeline.link_free[episode] = 0.0
        state.busy[episode] = state.load[episode] = state.time_s[episode] = 0.0
        state.device_of[episode] = state.shown[episode] = -1
        state.state[episode] = (0, -1, self._incremental and self._is_exact(problem, order, walk))
        if self.improving:
            self._place_all(episode, p)
        self._order_of[episode] = order
        self._decisions[episode], self._returns[episode] = 0, 0.0
        self._observe(episode)

    def step(self, actions: IntArray) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """Take one decision in every episode.

        Args:
            actions: device index per episode, int (n,).

        Returns:
            Rewards (n,) and whether each episode is over (n,); begin those anew before the next step.
        """
        shares = np.array_split(np.ascontiguousarray(actions, dtype=np.int64), len(self._trials))
        firsts = np.cumsum([0, *map(len, shares)])[:-1].tolist()
        list((self._pool.map if self._pool else map)(self._advance, firsts, shares, self._trials))
        self._decisions += 1
        self._returns += self._reward
        if self.improving:
            for episode in range(self.n):
                self._keep_best(episode)
        return self._reward.copy(), self._over.copy()

    def fork(self, source: int, target: int) -> None:
        """Make one episode a copy of another, its observation included."""
        state = self._episodes
        of_env = (self._order_of, self._decisions, self._returns, self._outcome, self._best)
        arrays = [each for name, each in state._asdict().items() if name != "timeline"]
        for rows in (*arrays, *state.timeline, *self.observation, *of_env):
            rows[target] = rows[source]

    def time_s(self) -> NDArray[np.float64]:
        """Step time of what each episode has placed so far, (n,)."""
        return self._episodes.time_s[:, 0].copy()

    def device_of(self, episode: int) -> IntArray:
        """Devices decided so far in one episode, int (n_ops,); -1 = not yet."""
        n_ops = self.problems[self._episodes.problem[episode]].graph.n_ops
        return self._episodes.device_of[episode, :n_ops].copy()

    def result(self, episode: int) -> EpisodeResult:
        """How an episode that is over ended."""
        state, problem = self._episodes, int(self._episodes.problem[episode])
        p = self.problems[problem]
        infeasible = bool(self._outcome[episode] == INFEASIBLE)
        step_time_s = float(state.time_s[episode, 0])
        device_of = self.device_of(episode)
        fits = bool(self._outcome[episode] == FITS)
        best = self._best[episode]
        if self.improving and best is not None:
            (step_time_s, device_of), infeasible = best, False
            fits = simulate_problem(p, device_of).fits
        return EpisodeResult(
            problem=problem,
            order=self.orders[self._order_of[episode]],
            step_time_s=float("nan") if infeasible else step_time_s,
            ratio_to_single=float("nan") if infeasible else step_time_s / p.scale_s,
            fits=fits,
            infeasible=infeasible,
            device_of=device_of,
            decisions=int(self._decisions[episode]),
            episode_return=float(self._returns[episode]),
        )

    def _observe(self, episode: int) -> None:
        self._advance(episode, ONLY_OBSERVE, self._trials[0])
        assert not self._over[episode], "check_feasible lets no episode begin without room"

    def _advance(self, first: int, actions: IntArray, trial: Trial) -> None:
        step_episodes(
            self._bank,
            self._episodes,
            trial,
            self.improving,
            first,
            actions,
            self.observation,
            self._reward,
            self._over,
            self._outcome,
            self._peak,
        )

    def _walk(self, problem: int, order: int, rng: np.random.Generator) -> IntArray:
        """Ops in visiting order; in `improve` one visit per unit, several passes."""
        key = (problem, order)
        if self.orders[order] != "random" and key in self._walks:
            return self._walks[key]
        graph = self.problems[problem].graph
        walk = np.asarray(get_order(self.orders[order])(graph, rng), dtype=np.int64)
        if self.improving:
            _, first = np.unique(graph.unit_of[walk], return_index=True)
            walk = np.tile(walk[np.sort(first)], self._passes)
        self._walks[key] = walk
        return walk

    def _is_exact(self, problem: int, order: int, walk: IntArray) -> bool:
        key = (problem, order)
        if self.orders[order] == "random" or key not in self._exact:
            self._exact[key] = not self.improving and is_incremental(self.problems[problem], walk)
        return self._exact[key]

    def _place_all(self, episode: int, p: Problem) -> None:
        """Begin `improve` from a complete placement."""
        state, n_ops = self._episodes, p.graph.n_ops
        device_of = np.asarray(self._start(p), dtype=np.int64)
        state.device_of[episode, :n_ops] = state.shown[episode, :n_ops] = device_of
        seconds = p.op_seconds[np.arange(n_ops), device_of]
        state.busy[episode, : p.n_devices] = np.bincount(device_of, seconds, minlength=p.n_devices)
        unit_device = device_of[p.graph.units.items[p.graph.units.ptr[:-1]]]
        state.load[episode, : p.n_devices] = np.bincount(
            unit_device, p.footprint_bytes, minlength=p.n_devices
        )
        timeline = type(state.timeline)(
            *(
                full[episode, :size]
                for full, size in zip(
                    state.timeline,
                    (n_ops, n_ops, *[p.graph.n_tensors * p.n_devices] * 2, p.n_devices, p.n_devices**2),
                    strict=True,
                )
            )
        )
        run_many(p.arrays, device_of[None], timeline, False, state.time_s[episode], np.zeros((1, 0)))
        self._best[episode] = None
        self._keep_best(episode)

    def _keep_best(self, episode: int) -> None:
        """Remember the fastest placement seen that fits."""
        state = self._episodes
        p = self.problems[state.problem[episode]]
        time_s, best = float(state.time_s[episode, 0]), self._best[episode]
        if best is not None and best[0] <= time_s:
            return
        if (state.load[episode, : p.n_devices] > p.cluster.memory_bytes).any():
            return
        self._best[episode] = (time_s, state.device_of[episode, : p.graph.n_ops].copy())


def is_incremental(problem: Problem, walk: IntArray) -> bool:
    """Whether the walked prefix can be simulated by adding one op at a time.

    It can in program order under a `program` schedule, when all updates come after the last visited op and
    every parameter and input is decided before it is read.
    """
    graph = problem.graph
    compute = np.flatnonzero(graph.is_compute)
    if problem.arrays.rules[0] != PROGRAM or not np.array_equal(walk, compute):
        return False
    followers = np.flatnonzero(~graph.is_source & ~graph.is_compute)
    if len(followers) and followers[0] < compute[-1]:
        return False
    decided = np.full(len(graph.units), graph.n_ops)
    np.minimum.at(decided, graph.unit_of[compute], compute)
    producer, reader = graph.edges.T
    from_free = graph.is_source[producer] & graph.is_compute[reader]
    return bool((decided[graph.unit_of[producer[from_free]]] <= reader[from_free]).all())


def _check(problems: Sequence[Problem], orders: Sequence[str], mdp: str) -> None:
    if not problems:
        raise MdpError("no problems to walk; give at least one graph and one cluster")
    if mdp not in MDPS:
        raise MdpError(f"unknown mdp '{mdp}'; use one of {', '.join(MDPS)}")
    if not orders:
        raise MdpError("no order to walk in; give at least one, e.g. topo")
    for name in orders:
        get_order(name)
    for problem in problems:
        if not problem.graph.is_compute.any():
            raise MdpError(f"graph '{problem.graph.name}' has only parameters and inputs; nothing to place")
        problem.check_feasible()
