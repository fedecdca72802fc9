"""A policy as a placer of pipelines: its walks follow its scores, and its placers keep what they find."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent.pipelines.search import PipelineSearch, place_pipeline
from agent.placers.base import Budget
from agent.policy.network import PlacementNetwork
from agent.policy.pipelines import LEARNED_PIPELINES, decode_pipelines
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.mdp.placement_env import PlacementEnv
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph


@pytest.fixture(scope="module")
def pipelined() -> PipelinedProblem:
    rng = np.random.default_rng(5)
    problem = Problem(random_training_graph(rng, 12), random_pipeline_cluster(rng, 3))
    return PipelinedProblem(problem, Pipeline("1f1b", 4))


@pytest.fixture(scope="module")
def policy() -> Policy:
    torch.manual_seed(1)
    policy = Policy(PlacementNetwork(current_shape("sage", 8, 1)))
    with torch.no_grad():
        for weight in policy.parameters():
            weight.mul_(3.0)
    return policy


def test_the_greedy_walk_takes_the_device_that_torch_scores_highest(
    pipelined: PipelinedProblem, policy: Policy
) -> None:
    [cuts] = decode_pipelines(policy, pipelined)
    env = PlacementEnv([pipelined.problem], pipeline=pipelined.pipeline)
    policy.set_problems([pipelined.problem])
    seen, _ = env.reset()
    done = False
    while not done:
        obs = {name: torch.from_numpy(value[None]) for name, value in seen.items()}
        seen, _, done, _, _ = env.step(np.int64(policy.scores(obs)[0].argmax()))
    search = PipelineSearch(pipelined, Budget(1))
    np.testing.assert_array_equal(search.stages(cuts).device_of, env.device_of)


def test_samples_depend_on_the_seed_alone(pipelined: PipelinedProblem, policy: Policy) -> None:
    first, again, other = (
        decode_pipelines(policy, pipelined, 4, np.random.default_rng(seed), greedy=False)
        for seed in (0, 0, 1)
    )
    assert first == again != other
    assert len(set(first)) > 1


@pytest.mark.parametrize("name", LEARNED_PIPELINES)
def test_placers_end_no_worse_than_the_greedy_walk(
    name: str, pipelined: PipelinedProblem, policy: Policy
) -> None:
    [greedy] = decode_pipelines(policy, pipelined)
    greedy_s = pipelined.step_time_s(PipelineSearch(pipelined, Budget(1)).stages(greedy))
    placer = LEARNED_PIPELINES[name].with_policy(policy)
    found = placer.place(pipelined, Budget(60), np.random.default_rng(0))
    assert found.step.total_s <= greedy_s
    assert found.evaluations <= 60


def test_without_a_walk_to_the_end_equal_time_is_the_answer(
    pipelined: PipelinedProblem, policy: Policy
) -> None:
    scarce = PipelinedProblem(pipelined.problem.with_memory(np.full(3, 1.0)), pipelined.pipeline)
    assert decode_pipelines(policy, scarce, 3) == []
    found = LEARNED_PIPELINES["policy"].with_policy(policy).place(scarce, Budget(1), np.random.default_rng(0))
    assert found.cuts == place_pipeline("equal-time", scarce, Budget(1)).cuts


def test_a_score_that_is_not_finite_is_refused(pipelined: PipelinedProblem) -> None:
    broken = Policy(PlacementNetwork(current_shape("sage", 8, 1)))
    with torch.no_grad():
        broken.network.of_device.weight.fill_(torch.nan)
    with pytest.raises(FloatingPointError, match="not finite"):
        decode_pipelines(broken, pipelined)
