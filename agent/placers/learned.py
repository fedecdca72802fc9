"""Placers that walk the graph with a trained policy."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agent.placers.base import Placer, Search

if TYPE_CHECKING:
    from agent.policy import Policy

WALKS = 16
"""Placements that `policy-sample` draws beside the greedy one, where the budget allows."""


def policy(search: Search, rng: np.random.Generator, policy: Policy, order: str) -> None:
    """One greedy walk: at each op the device that the policy scores highest."""
    _walk(search, rng, policy, order, 0)


def policy_sample(search: Search, rng: np.random.Generator, policy: Policy, order: str) -> None:
    """The best of the greedy walk and a batch of walks that draw each device from the policy."""
    _walk(search, rng, policy, order, 0)
    if samples := min(search.left, WALKS):
        _walk(search, rng, policy, order, samples)


def _walk(search: Search, rng: np.random.Generator, policy: Policy, order: str, samples: int) -> None:
    """Score complete placements only: the partial ones that a walk looks ahead to are not evaluations."""
    from agent.decoding import decode

    search.score(decode(policy, search.problem, order=order, n_samples=samples, rng=rng))


class LearnedStrategy(Protocol):
    """A strategy that also takes a policy and the name of the order to walk in."""

    def __call__(self, search: Search, rng: np.random.Generator, policy: Policy, order: str) -> None: ...


LEARNED: Mapping[str, tuple[LearnedStrategy, bool]] = MappingProxyType(
    {"policy": (policy, False), "policy-sample": (policy_sample, True)}
)
"""Placers that need a policy, by name, and whether they draw at random."""


def learned_placer(name: str, policy: Policy, order: str) -> Placer:
    """A placer of `LEARNED` with its policy and order; a random order makes any of them random."""
    strategy, uses_rng = LEARNED[name]
    return Placer(name, partial(strategy, policy=policy, order=order), uses_rng or order == "random")
