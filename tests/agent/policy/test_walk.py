"""Compiled walks decide as the torch policy does, at every decision."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from agent.placers.search.walks import TAKE_BEST
from agent.policy.compiled.layers import silu
from agent.policy.compiled.walk import TIE, PolicyDecider
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from tests.agent.placement_cases import random_problem

TOLERANCE = 2e-5
"""Of logits of size 1: sums of float32 in another sequence."""


def make_policy(feature_set: str = "rollout") -> Policy:
    torch.manual_seed(1)
    network = PlacementNetwork(current_shape("sage", 24, 2, feature_set))
    torch.nn.init.normal_(network.actor[-1].weight)
    return Policy(network)


def compare(policy: Policy, problems: list[Problem], **arguments: object) -> int:
    """Steps episodes, half of them drawing; compares logits and devices. Returns the decisions compared."""
    policy.set_problems(problems)
    n = 2 * len(problems)
    batch = EpisodeBatch(problems, n, EpisodeSettings(**arguments))  # type: ignore[arg-type]
    rng, n_compared = np.random.default_rng(0), 0
    for episode in range(n):
        batch.begin(episode, episode % len(problems), 0, rng)
    walk, one = PolicyDecider(policy.compiled().head_arrays(problems), batch), np.ones(n, dtype=np.int64)
    while not (before := batch.done).all():
        arrays = batch.observation._asdict()
        with torch.inference_mode():
            obs = {name: torch.from_numpy(rows.copy()) for name, rows in arrays.items()}
            expected = policy.scores(obs)[0].numpy()
        usable = arrays["mask"].astype(bool)
        ops = arrays["op"].copy()
        draws = np.where(np.arange(n) < len(problems), TAKE_BEST, rng.random(n))
        walk.decide(one, draws[:, None, None])
        for episode in np.flatnonzero(~before):
            mask, logits = usable[episode], walk.logits[episode]
            np.testing.assert_allclose(logits[mask], expected[episode, mask], atol=TOLERANCE, rtol=TOLERANCE)
            if draws[episode] == TAKE_BEST:
                near = mask & (logits > logits[mask].max() - TIE)
                assert batch.device_of(episode)[ops[episode, 0]] == np.flatnonzero(near)[0]
            n_compared += 1
    return n_compared


@pytest.mark.parametrize("cluster", ["4xv100", "gpu+cpu", "2x4xa100", "placeto-k80:3"])
@pytest.mark.parametrize(("mdp", "order"), [("construct", "topo"), ("construct", "bfs"), ("improve", "topo")])
def test_logits_are_those_of_torch(cluster: str, mdp: str, order: str) -> None:
    graphs = [load_family("cifar10")[0], with_granularity(load_family("ptb")[1], "module")]
    problems = [Problem(graph, get_cluster(cluster)) for graph in graphs]
    assert compare(make_policy(), problems, mdp=mdp, orders=[order], passes=1) > 100


@pytest.mark.parametrize("feature_set", ["rollout", "consumers", "lookahead", "state"])
def test_every_feature_set(feature_set: str) -> None:
    assert compare(make_policy(feature_set), [random_problem(0), random_problem(1)]) > 20


def test_devices_are_drawn_by_their_probability() -> None:
    """Draws at the middle of equal steps pick each device as often as its probability says, within one."""
    problem, n = random_problem(3), 500
    policy = make_policy()
    policy.set_problems([problem])
    batch = EpisodeBatch([problem], n)
    for episode in range(n):
        batch.begin(episode, 0, 0, np.random.default_rng(0))
    op, usable = int(batch.observation.op[0, 0]), batch.observation.mask[0].astype(bool)
    walk = PolicyDecider(policy.compiled().head_arrays([problem]), batch)
    walk.decide(np.ones(n, dtype=np.int64), ((np.arange(n) + 0.5) / n)[:, None, None])
    logits = np.where(usable, walk.logits[0], -np.inf)
    probability = np.exp(logits - logits.max())
    probability /= probability.sum()
    drawn = np.bincount([batch.device_of(episode)[op] for episode in range(n)], minlength=problem.n_devices)
    assert (np.abs(drawn - n * probability) <= 1.0).all()
    assert (probability > 0.02).sum() > 1


def test_silu_is_that_of_torch() -> None:
    x = np.linspace(-60, 60, 2_001, dtype=np.float32)
    expected = torch.nn.functional.silu(torch.from_numpy(x).double()).numpy()
    silu.py_func(x)
    np.testing.assert_allclose(x, expected, atol=4e-6)
