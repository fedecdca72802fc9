"""Episodes and all that the policy sees of them, against the plain-Python reference."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import SCHEDULES
from envs.placement import MASKS, MDPS
from envs.placement.episodes import EpisodeBatch, EpisodeSettings
from envs.placement.observation.features import DEVICE_FEATURES
from envs.placement.walk import is_incremental
from envs.problem import Problem
from graphs import OpGraph, build_graph
from graphs.orders import ORDERS
from tests.envs.random_problems import random_cluster, random_graph, random_placement
from tests.specification.episode import Construct, Improve, ReferenceEpisode
from tests.specification.observation import observe

PASSES = 2

NAMES = [feature.name for feature in DEVICE_FEATURES]


def training_graph(rng: np.random.Generator, n_layers: int, *, ties: bool, together: float) -> OpGraph:
    """A training step in small: an input, parameters, a forward, a backward, and an update per parameter.

    A parameter is colocated with its update, and with a probability (`together`) with its first reader too.
    Half of the gradients are sums of two or three of as many bytes.
    """
    ops: list[dict[str, object]] = []
    tensors: list[tuple[int, float, list[int]]] = []

    def amount() -> float:
        return float(rng.integers(0, 4)) if ties else float(rng.exponential())

    def add(
        kind: str, phase: str, reads: list[int], group: int | None = None, size: float | None = None
    ) -> int:
        """Append an op that reads tensors, and the tensor that it makes; returns the index of both."""
        seconds = 0.0 if kind != "aten.mm" else amount()
        at = len(ops)
        ops.append(
            {
                "name": f"{chr(97 + int(rng.integers(26)))}{at}",
                "type": kind,
                "phase": phase,
                "resident_bytes": amount() if kind == "parameter" else 0.0,
                "colocate": group,
                "seconds": {"a": seconds, "b": 2.0 * seconds},
            }
        )
        for tensor in set(reads):
            tensors[tensor][2].append(at)
        tensors.append((at, amount() if size is None else size, []))
        return at

    forward, weights = [add("input", "forward", [])], []
    for layer in range(n_layers):
        weights.append(add("parameter", "forward", [], layer))
        with_weight = layer if rng.random() < together else None
        skip = int(rng.choice(forward))
        forward.append(add("aten.mm", "forward", [forward[-1], weights[-1], skip], with_weight))
    gradient, gradients = forward[-1], []
    for layer in reversed(range(n_layers)):
        gradient = add("aten.mm", "backward", [gradient, forward[layer], weights[layer]])
        size = amount()
        gradients.append(add("aten.mm", "backward", [gradient, forward[layer + 1]], size=size))
        for _ in range(int(rng.choice([0, 0, 1, 2]))):
            term = add("aten.mm", "backward", [gradient], size=size)
            gradients[-1] = add("aten.mm", "backward", [gradients[-1], term], size=size)
    for layer, read in zip(reversed(range(n_layers)), gradients, strict=True):
        add("aten.mm", "optimizer", [read, weights[layer]], layer)
    return build_graph("training", "", ops, tensors)


def branching_graph(rng: np.random.Generator, *, ties: bool) -> OpGraph:
    """Two sources, a chain of up to a dozen ops after the second, and an op where both branches join."""
    n_ops = int(rng.integers(4, 16))
    sizes = (rng.integers(1, 5, n_ops) if ties else rng.exponential(1.0, n_ops)).tolist()
    ops = [{"name": f"op{at}", "seconds": {"a": 1.0, "b": 2.0}} for at in range(n_ops)]
    chain = [(at, sizes[at], [at + 1]) for at in range(1, n_ops - 1)]
    return build_graph("branching", "", ops, [(0, sizes[0], [n_ops - 1]), *chain])


def random_problem(rng: np.random.Generator, schedule: str, max_ops: int) -> Problem:
    """A graph on 1 to 4 devices that differ in speed and memory, often with little memory to spare."""
    ties = bool(rng.random() < 0.4)
    kind = rng.random()
    if kind < 0.1:
        graph = branching_graph(rng, ties=ties)
    elif kind < 0.5:
        n_layers = int(rng.integers(1, max(max_ops // 5, 2)))
        graph = training_graph(rng, n_layers, ties=ties, together=float(rng.choice([0.3, 1.0])))
    else:
        graph = random_graph(rng, int(rng.integers(1, max_ops)), ties=ties)
    if not graph.is_compute.any():
        return random_problem(rng, schedule, max_ops)
    problem = Problem(graph, random_cluster(rng, int(rng.integers(1, 5)), ties=ties, schedule=schedule))
    if rng.random() < 0.5:
        needed = problem.footprint_bytes.sum() * rng.uniform(1.05, 2.0)
        shares = rng.dirichlet(np.full(problem.n_devices, 5.0))
        tight = problem.with_memory(np.ceil(needed * shares * 64) / 64 + 1 / 128)
        problem = tight if tight.is_feasible else problem
    return problem


def begin(
    problems: list[Problem],
    orders: list[str],
    mdp: str,
    incremental: bool,
    seed: int,
    mask: str = "memory",
    memory_penalty: float = 1.0,
) -> tuple[EpisodeBatch, list[ReferenceEpisode]]:
    """Start one episode for each of the problems, in the batch and in the reference.

    Two thirds of the `improve` episodes start from a random placement, the others on the fastest device.
    """
    starts = {
        id(problem): random_placement(np.random.default_rng(seed + at), problem.graph, problem.n_devices)
        if (seed + at) % 3
        else np.full(problem.graph.n_ops, int(np.argmin(problem.single_device_s)))
        for at, problem in enumerate(problems)
    }
    batch = EpisodeBatch(
        problems,
        len(problems),
        EpisodeSettings(orders, mdp, PASSES, lambda problem: starts[id(problem)], mask, memory_penalty),
        incremental=incremental,
    )
    references: list[ReferenceEpisode] = []
    for at, problem in enumerate(problems):
        batch.begin(at, at, at, np.random.default_rng(seed))
        order = ORDERS[orders[at]](problem.graph, np.random.default_rng(seed)).tolist()
        if mdp == "construct":
            references.append(Construct(problem, order))
        else:
            references.append(Improve(problem, order, PASSES, starts[id(problem)].tolist()))
        references[-1].masks, references[-1].memory_penalty = mask == "memory", memory_penalty
    return batch, references


def compare_observation(batch: EpisodeBatch, at: int, reference: ReferenceEpisode) -> None:
    """Everything seen in one episode of a batch; zeros beyond the devices of its problem."""
    seen, expected = batch.observation, observe(reference)
    n_devices = len(expected.mask)
    assert seen.problem[at, 0] == at
    assert seen.op[at, 0] == expected.op
    assert seen.mask[at, :n_devices].tolist() == expected.mask
    assert not seen.mask[at, n_devices:].any()
    assert not seen.devices[at, n_devices:].any()
    assert set(expected.features) == set(NAMES)
    table = np.array([expected.features[name] for name in NAMES])
    close = np.isclose(seen.devices[at, :n_devices].T, table, rtol=1e-6, atol=1e-6).all(axis=1)
    for index in np.flatnonzero(~close):
        where = f"feature '{NAMES[index]}' of op {expected.op} at visit {reference.position}"
        np.testing.assert_allclose(
            seen.devices[at, :n_devices, index], table[index], rtol=1e-6, atol=1e-6, err_msg=where
        )


def compare_ending(batch: EpisodeBatch, at: int, reference: ReferenceEpisode, rewards: list[float]) -> None:
    """How one episode of a batch ended."""
    ending, expected = batch.result(at), reference.result()
    np.testing.assert_equal(ending.step_time_s, expected.step_time_s)
    ratio = expected.step_time_s / reference.scale_s
    assert ending.ratio_to_single == pytest.approx(ratio, rel=1e-12, nan_ok=True)
    assert (ending.fits, ending.infeasible) == (expected.fits, expected.infeasible)
    assert ending.device_of.tolist() == expected.device_of
    assert ending.decisions == len(rewards)
    assert ending.episode_return == pytest.approx(sum(rewards), abs=1e-9)


def follow(batch: EpisodeBatch, references: list[ReferenceEpisode], rng: np.random.Generator) -> None:
    """Take all episodes to their ends with random allowed actions, comparing all on the way."""
    going = dict(enumerate(references))
    rewards: list[list[float]] = [[] for _ in references]
    for at, reference in going.items():
        assert batch.time_s()[at] == reference.time_s
        compare_observation(batch, at, reference)
    while going:
        actions = np.array([rng.choice(np.flatnonzero(mask)) for mask in batch.observation.mask])
        seen_rewards, over = batch.step(actions)
        for at, reference in list(going.items()):
            rewards[at].append(reference.step(int(actions[at])))
            assert seen_rewards[at] == pytest.approx(rewards[at][-1], rel=1e-9, abs=1e-9)
            assert over[at] == reference.done
            assert batch.time_s()[at] == reference.time_s
            assert batch.device_of(at).tolist() == reference.device_of
            if not reference.done or reference.infeasible:
                compare_observation(batch, at, reference)
            if reference.done:
                compare_ending(batch, at, going.pop(at), rewards[at])
        for ended in map(int, np.flatnonzero(over)):
            batch.begin(ended, ended, ended, np.random.default_rng(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("mdp", MDPS)
@settings(max_examples=40)
@given(
    seed=st.integers(0, 2**32 - 1),
    orders=st.permutations(list(ORDERS)),
    incremental=st.booleans(),
    mask=st.sampled_from(MASKS),
    memory_penalty=st.sampled_from([1.0, 0.0, 2.5]),
)
def test_equals_the_plain_reference(
    mdp: str, schedule: str, seed: int, orders: list[str], incremental: bool, mask: str, memory_penalty: float
) -> None:
    rng = np.random.default_rng(seed)
    max_ops = 20 if mdp == "construct" else 14
    problems = [random_problem(rng, schedule, max_ops) for _ in range(2)]
    incremental &= not any(len(problem.graph.unread) for problem in problems)  # see Approximations
    follow(*begin(problems, orders[:2], mdp, incremental, seed % 1000, mask, memory_penalty), rng)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_equals_the_plain_reference_in_program_order_beyond_the_last_horizon(schedule: str) -> None:
    rng = np.random.default_rng(5)
    graph = training_graph(rng, 9, ties=schedule == "fifo", together=1.0)
    problem = Problem(graph, random_cluster(rng, 2, schedule=schedule))
    batch, (reference,) = begin([problem], ["topo"], "construct", True, 0)
    assert len(reference.visits) > 34
    assert is_incremental(problem, np.array(reference.visits)) == (schedule == "program")
    follow(batch, [reference], rng)
