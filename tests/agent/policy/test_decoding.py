"""Placements from a policy: compiled walks decide as torch does, whatever is decoded and however many."""

from __future__ import annotations

import gc
import weakref
from collections import Counter

import numpy as np
import pytest
import torch

from agent.placers.search.walks import TAKE_BEST
from agent.policy import decoding as evaluating
from agent.policy.compiled.walk import TIE, PolicyDecider
from agent.policy.decoding import Samples, decode, decode_many, ratios_over_orders
from agent.policy.mdp_config import MdpConfig
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from agent.policy.starts import start_names, start_of
from envs.cluster.presets import get_cluster
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.reward import Measured
from envs.placements.placement import Placement, check_placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs import build_graph
from graphs.dataset import load_family
from graphs.granularity import with_granularity
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import make_cluster, random_problem, training_graph


def make_policy(feature_set: str = "rollout") -> Policy:
    torch.manual_seed(1)
    network = PlacementNetwork(current_shape("sage", 24, 2, feature_set))
    torch.nn.init.normal_(network.actor[-1].weight)
    return Policy(network)


@pytest.fixture(scope="module")
def policy() -> Policy:
    return make_policy()


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


TOLERANCE = 2e-5
"""Of logits of size 1: sums of float32 in another sequence."""


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


@pytest.mark.parametrize(
    ("cluster", "mdp", "order"),
    [
        ("4xv100", "construct", "topo"),
        ("2x4xa100", "construct", "bfs"),
        ("gpu+cpu", "improve", "topo"),
        ("placeto-k80:3", "construct", "topo"),
        ("placeto-k80:3", "improve", "topo"),
    ],
)
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


ORDERS = ("topo", "bfs", "b-level")


@pytest.mark.parametrize("n_problems", [0, 1, 2, 3, 7])
def test_all_orders_are_placed_and_no_more_than_needed(n_problems, monkeypatch):
    placed = Counter()

    def greedy_ratios(policy, problems, order):
        placed.update((problem, order) for problem in problems)
        return [1.0 + ORDERS.index(order)] * len(problems)

    monkeypatch.setattr(evaluating, "greedy_ratios", greedy_ratios)
    ratios = ratios_over_orders(None, list(range(n_problems)), ORDERS)
    n_each = {0: 0, 1: 3, 2: 2}.get(n_problems, 1)
    assert Counter(problem for problem, _ in placed) == dict.fromkeys(range(n_problems), n_each)
    assert not n_problems or {order for _, order in placed} == set(ORDERS)
    for problem, ratio in enumerate(ratios):
        own = [1.0 + ORDERS.index(order) for number, order in placed if number == problem]
        assert ratio == pytest.approx(sum(own) / n_each)


def test_one_order_is_placed_by_all():
    policy = Policy(PlacementNetwork(current_shape("none", 8, 1)))
    problems = [Problem(training_graph(2, branches), make_cluster(2)) for branches in (1, 2)]
    assert ratios_over_orders(policy, problems, ("bfs",)) == evaluating.greedy_ratios(policy, problems, "bfs")


def test_a_factor_that_measured_steps_have_cancels_out_of_ratios_to_one_device():
    policy = Policy(PlacementNetwork(current_shape("none", 8, 1)))
    problems = [Problem(training_graph(2, 2), make_cluster(2))]
    measured = Measured(lambda problem, device_of: 3 * simulate_problem(problem, device_of).total_s)
    ratios = evaluating.greedy_ratios(policy, problems, "topo", measured)
    assert ratios == pytest.approx(evaluating.greedy_ratios(policy, problems, "topo"))


def test_a_start_is_found_once_and_lives_no_longer_than_its_problem() -> None:
    watched = []
    for name in start_names():
        problem = Problem(training_graph(2, 2), get_cluster("2xk80"))
        if name != "single":
            assert start_of(name)(problem) is start_of(name)(problem)
        start_of(name)(problem)
        watched.append(weakref.ref(problem))
    del problem
    gc.collect()
    assert {reference() for reference in watched} == {None}
