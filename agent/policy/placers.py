"""Placers that decide with a trained policy."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agent.placers.base import PLACERS, Placer, PlacerError, SearchState, Strategy
from agent.placers.heuristics.single import single_devices
from agent.placers.memory_limits import complete_placement, retry_until_feasible
from agent.placers.search.annealing import anneal_from_leaders
from agent.placers.search.refine import BATCH_COST, MAX_DRAWING_SHARE, SAMPLES, score_starts
from agent.placers.search.rollout import PARTICLES
from agent.placers.search.walks import WalkTooLongError
from agent.policy.decoding import ActingPolicy, Samples, decode
from agent.policy.starts import start_of
from envs.objective import OVER_BYTES
from envs.problem import InfeasibleError, Problem
from graphs.system.array_types import IntArray

if TYPE_CHECKING:
    from agent.policy.mdp_config import MdpConfig


class LearnedStrategy(Protocol):
    """A strategy that also takes a policy and the name of the order to visit the ops in."""

    def __call__(
        self, search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str
    ) -> None: ...


def learned(
    name: str, *, uses_rng: bool = True, is_hybrid: bool = False
) -> Callable[[LearnedStrategy], LearnedStrategy]:
    """Registers a strategy as the placer `name`, which needs a policy; torch is not loaded before it places.

    With its policy, it ends no worse than the best single device, if its budget allows to score all of them.

    Args:
        uses_rng: whether it draws devices, whatever the order.
        is_hybrid: whether heuristics and annealing place too, beside the policy.

    Raises:
        PlacerError: the name is taken.
    """

    def without_policy(search: SearchState, rng: np.random.Generator) -> None:
        raise PlacerError(f"placer '{name}' needs a policy; open one")

    def register(strategy: LearnedStrategy) -> LearnedStrategy:
        def guided(policy: ActingPolicy, order: str) -> Strategy:
            return no_worse_than_single(partial(strategy, policy=policy, order=order))

        entry = Placer(name, without_policy, uses_rng, True, "", guided, is_hybrid)
        PLACERS.register(name, entry, strategy.__module__)
        return strategy

    return register


@dataclass(frozen=True, eq=False)
class _Decoder:
    """Decodes within the budget of one search.

    A policy knows the bytes that units hold throughout, not activations: where it puts the same large ones
    on one device whatever the limit, only drawn placements can help.
    """

    search: SearchState
    rng: np.random.Generator
    policy: ActingPolicy
    order: str

    def place(self, samples: Samples) -> None:
        """Scores a greedy placement and drawn ones; with less memory until one is feasible.

        Where less memory does not help, some are drawn at last. With a budget of seconds, a greedy
        placement is decoded first, and the limit holds for all that follows.
        """
        problem = self.search.problem
        if samples.drawn and self.search.needs_placement and self.search.budget.seconds is not None:
            self.place(Samples())
        if not retry_until_feasible(problem, lambda limits: self._score(limits.problem, samples)):
            self._score(problem, Samples(SAMPLES))

    def _score(self, tight: Problem, samples: Samples) -> IntArray | None:
        """Decodes once and scores what is found.

        Where episodes improve a placement and the budget is small, they make fewer passes, or leave the
        placement as it is.

        Walks that would not end within the limit of seconds are given up, unless nothing else was scored;
        those that do outlast it are scored all the same.

        Returns:
            None where a placement is feasible or no budget is left; else the greedy placement, int (n_ops,).
        """
        search, mdp_config = self.search, self._affordable()
        if mdp_config is None:
            search.score(start_of(self.policy.mdp_config.start)(search.problem)[None])
            return None
        n_each = 1 + mdp_config.evaluations(search.problem)
        samples = replace(samples, drawn=max(min(search.left // n_each - 1, samples.drawn), 0))
        search.spend((1 + samples.drawn) * (n_each - 1))
        limit_s = math.inf if search.needs_placement else search.seconds_left
        try:
            found = self._decode(tight, mdp_config, samples, limit_s)
        except WalkTooLongError:
            return None
        over_bytes = search.score(found, overdue=True)[:, OVER_BYTES]
        return None if (over_bytes == 0.0).any() or not search.left else found[0]

    def _affordable(self) -> MdpConfig | None:
        """The policy's decision process with as many passes as the budget allows; None if it allows none."""
        search = self.search
        evaluations = search.left - 1 if search.budget.evaluations else None
        return self.policy.mdp_config.within(search.problem, evaluations)

    def _decode(self, tight: Problem, mdp_config: MdpConfig, samples: Samples, limit_s: float) -> IntArray:
        """Complete placements, the greedy one first, int (1 + drawn, n_ops).

        One, by memory alone, where none is feasible, or the graph has only parameters and inputs.
        """
        if tight.graph.is_compute.any():
            with suppress(InfeasibleError):
                return decode(
                    self.policy,
                    tight,
                    self.order,
                    samples,
                    self.rng,
                    mdp_config=mdp_config,
                    limit_s=limit_s,
                    clock=self.search.budget.clock,
                )
        problem = self.search.problem
        return complete_placement(problem, np.full(problem.graph.n_ops, -1))[None]


@learned("policy", uses_rng=False)
def policy_greedy(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Takes at each op the device that the policy scores highest; with less memory until that is feasible."""
    _Decoder(search, rng, policy, order).place(Samples())


@learned("policy-sample")
def policy_sample(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Keeps the best of the greedy placement and of some that draw each device from the policy."""
    _Decoder(search, rng, policy, order).place(Samples(SAMPLES))


@learned("policy-beam")
def policy_beam(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Keeps the best of many particles: episodes side by side, the slow replaced by copies of the fast."""
    _Decoder(search, rng, policy, order).place(Samples(PARTICLES, resample=True))


@learned("policy-refine", is_hybrid=True)
def policy_refine(search: SearchState, rng: np.random.Generator, *, policy: ActingPolicy, order: str) -> None:
    """Anneals from the best few that the heuristics and some particles find; so never worse than any of them.

    Where the budget is short for an episode, as one second is on a graph of a thousand ops, only the greedy
    one is decoded.
    """
    score_starts(search, rng)
    if search.left:
        before = search.progress
        decoder = _Decoder(search, rng, policy, order)
        decoder.place(Samples())
        if search.left and BATCH_COST * (search.progress - before) < MAX_DRAWING_SHARE:
            decoder.place(Samples(SAMPLES, resample=True))
    anneal_from_leaders(search, rng)


def no_worse_than_single(strategy: Strategy) -> Strategy:
    """Makes a strategy that also scores every single device, after another strategy.

    The devices are part of its budget: of N evaluations, the other strategy gets N - n_devices, or one where
    that is less; what it leaves goes to the devices that compute the step fastest. A limit of seconds is for
    the other strategy alone.
    """

    def place(search: SearchState, rng: np.random.Generator) -> None:
        evaluations, n_singles = search.budget.evaluations, search.problem.n_devices
        if evaluations is not None:
            n_singles = min(n_singles, evaluations - 1)
        search.run_alone(strategy, rng, within=evaluations and evaluations - n_singles)
        search.score(single_devices(search.problem)[:n_singles], overdue=True)

    return place
