"""Placers of pipelines that decide with a trained policy, and the walks in which it decides."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Protocol

import numpy as np

from agent.pipelines.annealing import refine_from
from agent.pipelines.equal import equal_time
from agent.pipelines.search import Cuts, PipelinePlacer, PipelineSearch
from agent.placers.base import PlacerError
from agent.policy.placers import SAMPLES
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import InfeasibleError
from graphs.system.registry import Registry

if TYPE_CHECKING:
    from agent.policy.decoding import ActingPolicy


def decode_pipelines(
    policy: ActingPolicy,
    pipelined: PipelinedProblem,
    n_samples: int = 0,
    rng: np.random.Generator | None = None,
    *,
    greedy: bool = True,
) -> list[Cuts]:
    """Finds plans of a pipeline by walks of a policy over its pieces, side by side.

    Args:
        rng: source of randomness; without it, one of a fixed seed.
        greedy: whether a plan that takes the best device for every piece comes before those drawn.

    Returns:
        The plans; none of a walk that ended because no device had the memory.

    Raises:
        PipelineError: as `PipelineEpisodes`.
        FloatingPointError: a score of the policy is NaN or infinite.
    """
    from agent.placers.search.walks import TAKE_BEST
    from agent.policy.compiled.walk import check_finite_scores, choose_devices, new_walk_state
    from envs.mdp.pipeline_episodes import PipelineEpisodes

    rng, n = rng or np.random.default_rng(0), greedy + n_samples
    head = policy.compiled().head_arrays([pipelined.problem])
    try:
        batch = PipelineEpisodes([pipelined.problem], n, pipeline=pipelined.pipeline)
        for episode in range(n):
            batch.begin(episode, 0, 0, rng)
    except InfeasibleError:
        return []
    state, actions = new_walk_state(head, batch), np.zeros(n, dtype=np.int64)
    while not batch.done.all():
        draws = rng.random(n)
        draws[: int(greedy)] = TAKE_BEST
        choose_devices(head, state.scratch, batch.observation, draws, batch.done, actions)
        state.is_finite[:] = batch.done | (actions >= 0)
        check_finite_scores(state)
        batch.step(actions)
    ended = [episode for episode in range(n) if not batch.result(episode).infeasible]
    return [Cuts(*batch.cuts(episode)) for episode in ended]


class LearnedPipelineStrategy(Protocol):
    """A strategy for pipelines that also takes a policy."""

    def __call__(self, search: PipelineSearch, rng: np.random.Generator, *, policy: ActingPolicy) -> None: ...


@dataclass(frozen=True)
class LearnedPipelinePlacer:
    """A named way to place pipelines with a policy.

    Attributes:
        uses_rng: whether another seed may give another plan.
    """

    name: str
    strategy: LearnedPipelineStrategy
    uses_rng: bool

    def with_policy(self, policy: ActingPolicy) -> PipelinePlacer:
        """Makes a placer of pipelines that asks a policy."""
        return PipelinePlacer(self.name, partial(self.strategy, policy=policy), self.uses_rng)


LEARNED_PIPELINES = Registry[LearnedPipelinePlacer]("learned placer of pipelines", PlacerError, ())
"""Every placer of pipelines that needs a policy, by name."""


def learned_pipeline(
    name: str, *, uses_rng: bool = True
) -> Callable[[LearnedPipelineStrategy], LearnedPipelineStrategy]:
    """Registers a strategy as the learned placer of pipelines `name`.

    Raises:
        PlacerError: the name is taken.
    """

    def register(strategy: LearnedPipelineStrategy) -> LearnedPipelineStrategy:
        LEARNED_PIPELINES.register(name, LearnedPipelinePlacer(name, strategy, uses_rng))
        return strategy

    return register


@learned_pipeline("policy", uses_rng=False)
def policy_pipeline(search: PipelineSearch, rng: np.random.Generator, *, policy: ActingPolicy) -> None:
    """Takes for each piece the device that the policy scores highest; `equal-time` if that ends nowhere."""
    _score(search, decode_pipelines(policy, search.pipelined), rng)


@learned_pipeline("policy-sample")
def policy_sample_pipeline(search: PipelineSearch, rng: np.random.Generator, *, policy: ActingPolicy) -> None:
    """Keeps the best of the greedy plan and of some that draw each device from the policy."""
    _score(search, decode_pipelines(policy, search.pipelined, SAMPLES, rng), rng)


@learned_pipeline("policy-refine")
def policy_refine_pipeline(search: PipelineSearch, rng: np.random.Generator, *, policy: ActingPolicy) -> None:
    """Does what `refine` does, with the greedy plan of the policy as a start too."""
    refine_from(search, decode_pipelines(policy, search.pipelined), rng)


def _score(search: PipelineSearch, found: list[Cuts], rng: np.random.Generator) -> None:
    for cuts in found:
        if search.left:
            search.score_cuts(cuts)
    if not found:
        equal_time(search, rng)
