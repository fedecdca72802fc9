"""What the wrapper observes: checkers, values worked out by hand, and plain SB3 that learns from it."""

from __future__ import annotations

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env as gymnasium_check
from sb3_contrib import MaskablePPO
from stable_baselines3.common.env_checker import check_env as sb3_check
from stable_baselines3.common.monitor import Monitor

import envs  # noqa: F401 - registers the environment
from envs.cluster.cluster import Cluster, Device
from envs.cluster.presets import get_cluster
from envs.placement.observation.graph_observation import NEIGHBOUR_FEATURES, OP_FEATURES, GraphObservation
from envs.problem import Problem
from graphs import build_graph
from tests.envs.hand_made_problems import chain_problem
from tests.envs.random_problems import random_graph

ID = "placewalk/Placement-v1"


@pytest.mark.parametrize("mdp", ["construct", "improve"])
def test_checkers_find_nothing(mdp: str) -> None:
    problems = [
        Problem(random_graph(np.random.default_rng(seed), 20, name=f"g{seed}"), get_cluster("2xk80"))
        for seed in range(2)
    ]
    env = GraphObservation(gym.make(ID, problems=problems, mdp=mdp))
    sb3_check(env)
    with pytest.warns(UserWarning, match="has a wrapper applied to it"):
        gymnasium_check(env, skip_render_check=True)


def test_values_of_a_hand_made_instance() -> None:
    env = GraphObservation(gym.make(ID, problems=[chain_problem()]), n_neighbours=2)
    seen, _ = env.reset(seed=0)
    assert not seen["producers"].any()
    assert not seen["consumers"].any()
    seen = env.step(np.int64(1))[0]
    # Ops take 1.125 s in the mean; 4 bytes over 8 bytes/s take 0.5 s; 10 of 100 bytes of memory are kept.
    transfer, a, b, footprint = np.log1p([0.5 / 1.125, 1.5 / 1.125, 0.75 / 1.125, 0.1])
    expected = [b, footprint, transfer, 0.0, np.log(2), 0.0, 1.0, 0.0, 0.0, 0.5]
    np.testing.assert_allclose(seen["op"], expected, rtol=1e-6)
    assert len(expected) == len(OP_FEATURES)
    producers = seen["producers"].reshape(2, len(NEIGHBOUR_FEATURES) + 2)
    np.testing.assert_allclose(producers[0], [1.0, transfer, a, footprint, 0.0, 0.0, 1.0], rtol=1e-6)
    assert not producers[1].any()
    assert not seen["consumers"].any()
    assert env.action_masks().tolist() == [True, True]


def test_an_improvement_sees_consumers_where_they_are() -> None:
    env = GraphObservation(gym.make(ID, problems=[chain_problem()], mdp="improve"), n_neighbours=1)
    seen, _ = env.reset(seed=0)
    transfer, b, footprint = np.log1p([0.5 / 1.125, 0.75 / 1.125, 0.1])
    np.testing.assert_allclose(seen["consumers"], [1.0, transfer, b, footprint, 0.0, 0.0, 1.0], rtol=1e-6)


def test_neighbours_with_most_bytes_come_first_and_the_rest_is_left_out() -> None:
    ops = [{"name": "x", "type": "input"}, *({"name": f"p{i}", "seconds": {"k80": 1.0}} for i in range(3))]
    tensors = [(0, 5e9, [4]), (1, 1e9, [4]), (2, 2e9, [4]), (2, 2e9, [4]), (3, 3e9, [4])]
    graph = build_graph("star", "", [*ops, {"name": "c", "seconds": {"k80": 1.0}}], tensors)
    env = GraphObservation(gym.make(ID, problems=[Problem(graph, get_cluster("2xk80"))]), n_neighbours=2)
    env.reset(seed=0)
    for device in (0, 1, 0):
        seen = env.step(np.int64(device))[0]
    producers = seen["producers"].reshape(2, -1)
    # The input x is not placed before c, which decides for it; of the others p1 sends 4e9 bytes, p2 3e9.
    assert producers[:, len(NEIGHBOUR_FEATURES) :].tolist() == [[0, 1], [1, 0]]
    sent = np.expm1(producers[:, NEIGHBOUR_FEATURES.index("transfer_time")])
    assert sent[0] / sent[1] == pytest.approx(4 / 3, rel=1e-5)


def test_other_environments_are_refused() -> None:
    with pytest.raises(TypeError, match="PlacementEnv"):
        GraphObservation(gym.make("CartPole-v1"))
    with pytest.raises(ValueError, match="at least 1"):
        GraphObservation(gym.make(ID, problems=[chain_problem()]), n_neighbours=0)


def slow_and_fast() -> Problem:
    """Eight ops in a row on two devices, one of which is ten times as fast."""
    ops = [{"name": f"op{i}", "seconds": {"slow": 1.0, "fast": 0.1}} for i in range(8)]
    graph = build_graph("row", "", ops, [(i, 1.0, [i + 1]) for i in range(7)])
    devices = tuple(Device(kind, kind, 100.0, 1.0, 1.0, 0.0) for kind in ("slow", "fast"))
    return Problem(graph, Cluster("two", devices, np.full((2, 2), 100.0), np.zeros((2, 2))))


def test_plain_ppo_learns_a_trivial_problem() -> None:
    env = Monitor(GraphObservation(gym.make(ID, problems=[slow_and_fast()])))
    env.reset(seed=0)
    env.action_space.seed(0)
    at_random = [episode_return(env, lambda _: env.action_space.sample()) for _ in range(20)]
    settings = {"n_steps": 128, "batch_size": 128, "n_epochs": 5, "learning_rate": 1e-2}
    model = MaskablePPO("MultiInputPolicy", env, **settings, seed=0, device="cpu").learn(512)
    learned = episode_return(env, lambda seen: model.predict(seen, deterministic=True)[0])
    assert np.mean(at_random) < -3.0
    assert learned == pytest.approx(-1.0)


def episode_return(env: gym.Env, act) -> float:
    seen, _ = env.reset()
    total, done = 0.0, False
    while not done:
        seen, reward, done, *_ = env.step(np.int64(act(seen)))
        total += float(reward)
    return total
