"""Placements from a policy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent.policy.decoding import Samples, decode, decode_many
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.placements.placement import Placement, check_placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import build_graph
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import make_cluster, random_problem, training_graph


@pytest.fixture
def policy() -> Policy:
    torch.manual_seed(0)
    network = PlacementNetwork(current_shape("sage", 16, 2))
    torch.nn.init.normal_(network.actor[-1].weight)
    return Policy(network)


@pytest.mark.parametrize("mdp", ["construct", "improve"])
@pytest.mark.parametrize("order", ["topo", "random", "bfs"])
@pytest.mark.parametrize("samples", [Samples(0), Samples(3), Samples(8, resample=True)])
def test_placements_are_valid_and_the_same_for_the_same_generator(
    policy: Policy, mdp: str, order: str, samples: Samples
) -> None:
    problem, mdp_config = random_problem(3), MdpConfig(mdp)
    placements, again = (
        decode(policy, problem, order, samples, np.random.default_rng(5), mdp_config=mdp_config)
        for _ in range(2)
    )
    np.testing.assert_array_equal(placements, again)
    assert placements.shape == (1 + samples.drawn, problem.graph.n_ops)
    assert placements.dtype == np.int64
    for device_of in placements:
        check_placement(problem.graph, problem.cluster, Placement(device_of))


def test_samples_differ(policy: Policy) -> None:
    placements = decode(policy, random_problem(1), samples=Samples(8, greedy=False))
    assert len(placements) == 8
    assert len(np.unique(placements, axis=0)) > 1


@pytest.mark.parametrize(
    "samples", [Samples(1), Samples(80), Samples(0, resample=True), Samples(19, resample=True)]
)
def test_the_greedy_placement_comes_before_samples_and_particles(policy: Policy, samples: Samples) -> None:
    problems = [random_problem(seed, n_ops=20 + 10 * seed) for seed in range(8)]
    together = decode_many(policy, problems, samples=samples)
    for problem, placements in zip(problems, together, strict=True):
        assert placements.shape == (1 + samples.drawn, problem.graph.n_ops)
        np.testing.assert_array_equal(placements[:1], decode(policy, problem))


def test_side_by_side_is_as_one_by_one(policy: Policy) -> None:
    problems = [random_problem(seed, n_ops=20 + 10 * seed, n_devices=2 + seed) for seed in range(4)]
    together = decode_many(policy, problems, threads=2)
    for problem, placements in zip(problems, together, strict=True):
        np.testing.assert_array_equal(placements, decode(policy, problem))


def test_the_embeddings_of_the_policy_stay(policy: Policy) -> None:
    policy.set_problems([random_problem(0)])
    embeddings = policy.embeddings
    decode(policy, random_problem(1))
    assert policy.embeddings is embeddings


def test_an_episode_without_memory_is_completed(policy: Policy) -> None:
    graph = training_graph(2, 2)
    tight = Problem(graph, make_cluster(2, memory_bytes=2.2e9))
    placements = decode(policy, tight, samples=Samples(8), rng=np.random.default_rng(0))
    assert ((placements >= 0) & (placements < 2)).all()


def test_resampled_particles_are_faster_than_samples(policy: Policy) -> None:
    def mean_s(problem: Problem, placements: IntArray) -> float:
        return float(np.mean([simulate_problem(problem, device_of).total_s for device_of in placements]))

    problems = [random_problem(seed, n_ops=80) for seed in range(5)]
    alone = [mean_s(each, decode(policy, each, samples=Samples(31))) for each in problems]
    resampled = decode_many(policy, problems, samples=Samples(31, resample=True))
    together = [mean_s(each, placements) for each, placements in zip(problems, resampled, strict=True)]
    ratios = np.array(together) / np.array(alone)
    assert ratios.mean() < 0.95


def test_a_particle_without_memory_goes_on_as_another(policy: Policy) -> None:
    """Two ops of 2 bytes after four of 1 on two devices of 4 bytes: episodes that put three together fail."""
    ops = [{"name": str(op), "flops": 1e9, "resident_bytes": float(size)} for op, size in enumerate("111122")]
    problem = Problem(build_graph("tight", "", ops, []), make_cluster(2, memory_bytes=4.0))
    alone = decode(policy, problem, samples=Samples(40, greedy=False))
    assert not all(simulate_problem(problem, device_of).fits for device_of in alone)
    resampled = decode(policy, problem, samples=Samples(39, resample=True))
    assert all(simulate_problem(problem, device_of).fits for device_of in resampled)
