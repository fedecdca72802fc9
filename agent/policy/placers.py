"""Placers that walk the graph with a trained policy."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agent.placers.annealing import anneal_from_best
from agent.placers.base import PLACERS, Placer, PlacerError, SearchState
from agent.placers.memory_limits import MAX_ATTEMPTS, next_limit
from agent.placers.units import complete
from envs.problem import InfeasibleError, Problem
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import IntArray
from graphs.registry import Registry

if TYPE_CHECKING:
    from agent.policy.mdp_config import MdpConfig
    from agent.policy.policy import Policy

WALKS = 16
"""Placements that `policy-sample` draws beside the greedy one, where the budget allows."""
BEAM = 63
"""Episodes of `policy-beam` beside the greedy one, where the budget allows."""
BATCH_COST, MOST_WALKED = 4, 0.25
"""How many times as long as the greedy walk `WALKS` drawn ones take, side by side, about; and the share of a
budget that `policy-refine` gives them at most: what annealing would do with more is worth more."""


class LearnedStrategy(Protocol):
    """A strategy that also takes a policy and the name of the order to visit the ops in."""

    def __call__(
        self, search: SearchState, rng: np.random.Generator, *, policy: Policy, order: str
    ) -> None: ...


@dataclass(frozen=True)
class LearnedPlacer:
    """A named way to place with a policy.

    Attributes:
        strategy: what it does.
        uses_rng: whether it draws devices, whatever the order.
    """

    name: str
    strategy: LearnedStrategy
    uses_rng: bool


LEARNED = Registry[LearnedPlacer]("learned placer", PlacerError)
"""Every placer that needs a policy, by name; torch is not loaded before one of them places."""


def learned(name: str, *, uses_rng: bool = True) -> Callable[[LearnedStrategy], LearnedStrategy]:
    """Registers a strategy as the learned placer `name`.

    Raises:
        PlacerError: the name is taken.
    """

    def register(strategy: LearnedStrategy) -> LearnedStrategy:
        LEARNED.register(name, LearnedPlacer(name, strategy, uses_rng))
        return strategy

    return register


@learned("policy", uses_rng=False)
def policy_greedy(search: SearchState, rng: np.random.Generator, *, policy: Policy, order: str) -> None:
    """One walk: at each op the device that the policy scores highest; with less memory until it fits."""
    _walk_until_it_fits(search, rng, policy, order, 0)


@learned("policy-sample")
def policy_sample(search: SearchState, rng: np.random.Generator, *, policy: Policy, order: str) -> None:
    """The best of the greedy walk and a batch of walks that draw each device from the policy."""
    _walk_until_it_fits(search, rng, policy, order, WALKS)


@learned("policy-beam")
def policy_beam(search: SearchState, rng: np.random.Generator, *, policy: Policy, order: str) -> None:
    """The best of many walks side by side, of which those behind become copies of those ahead."""
    _walk_until_it_fits(search, rng, policy, order, BEAM, beam=True)


@learned("policy-refine")
def policy_refine(search: SearchState, rng: np.random.Generator, *, policy: Policy, order: str) -> None:
    """Annealing from the best that the heuristics and a small beam find; so never worse than any of them.

    Where the budget is short for a walk, as one second is on a graph of a thousand ops, there is no beam.
    """
    for heuristic in PLACERS.values():
        if not heuristic.uses_rng and search.left:
            heuristic.strategy(search, rng)
    if search.left:
        before = search.progress
        _walk_until_it_fits(search, rng, policy, order, 0)
        if search.left and BATCH_COST * (search.progress - before) < MOST_WALKED:
            _walk_until_it_fits(search, rng, policy, order, WALKS, beam=True)
    anneal_from_best(search, rng)


def _walk_until_it_fits(
    search: SearchState,
    rng: np.random.Generator,
    policy: Policy,
    order: str,
    samples: int,
    *,
    beam: bool = False,
) -> None:
    """A greedy walk and, within the budget, drawn ones beside it; with less memory until one fits.

    A policy knows of what is held throughout, not of activations: where it puts the same large ones on one
    device whatever the limit, only other walks can help, and some are drawn at last.

    Episodes that improve a placement count what they simulate; where the budget is small they make fewer
    passes, or leave the placement as it is.
    """
    problem = search.problem
    memory_bytes = problem.cluster.memory_bytes
    limit_bytes = memory_bytes
    for trial in range(1, MAX_ATTEMPTS + 2):
        at_last = trial > MAX_ATTEMPTS
        tight = problem if trial == 1 or at_last else problem.with_memory(limit_bytes)
        walks = policy.mdp_config.within(problem, search.left - 1 if search.budget.evaluations else None)
        if walks is None:
            search.score(policy.mdp_config.arguments["start"](problem)[None])
            return
        cost = walks.evaluations(problem)
        drawn = min(search.left // (1 + cost) - 1, WALKS if at_last else samples)
        found = _walk(search, rng, policy, order, tight, walks, max(drawn, 0), beam=beam and not at_last)
        over_bytes = search.score(found)[:, 1]
        if (over_bytes == 0.0).any() or not search.left:
            return
        if trial < MAX_ATTEMPTS:
            peak_bytes = simulate_problem(problem, found[0]).peak_bytes
            limit_bytes = next_limit(trial, limit_bytes, peak_bytes, memory_bytes)


def _walk(
    search: SearchState,
    rng: np.random.Generator,
    policy: Policy,
    order: str,
    tight: Problem,
    walks: MdpConfig,
    samples: int,
    *,
    beam: bool,
) -> IntArray:
    """Complete placements from a greedy walk and drawn ones with less memory, (1 + samples, n_ops)."""
    from agent.policy.decoding import decode

    problem = search.problem
    search.spend((1 + samples) * walks.evaluations(problem))
    try:
        found = decode(policy, tight, order=order, n_samples=samples, rng=rng, beam=beam, walks=walks)
    except InfeasibleError:
        found = np.full((1, problem.graph.n_ops), -1)
    return np.stack([complete(problem, device_of) for device_of in found])


def draws_at_random(name: str, order: str) -> bool:
    """Says whether a placer of `LEARNED` may find another placement with another seed."""
    return LEARNED[name].uses_rng or order == "random"


def learned_placer(name: str, policy: Policy, order: str) -> Placer:
    """Makes a placer of a learned strategy, a policy and the order that it visits the ops in.

    Raises:
        PlacerError: an unknown name.
    """
    strategy = partial(LEARNED[name].strategy, policy=policy, order=order)
    return Placer(name, strategy, draws_at_random(name, order))
