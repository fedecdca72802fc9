"""Every placement can be reached in every order; a memory mask keeps that, but ends some walks early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.placement.episodes import EpisodeBatch, EpisodeResult, EpisodeSettings
from envs.problem import Problem
from envs.simulator.simulate import step_times_s
from graphs import build_graph
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from tests.envs.random_problems import random_cluster, random_graph


def walked(problem: Problem, order: str, mask: str) -> tuple[IntArray, list[EpisodeResult]]:
    """Walks to all placements, int (n, n_ops), by another device where its own is masked."""
    n_units, episodes = len(problem.graph.units), problem.n_devices ** len(problem.graph.units)
    by_unit = np.array(list(itertools.product(range(problem.n_devices), repeat=n_units)))
    batch, each = EpisodeBatch([problem], episodes, EpisodeSettings((order,), mask=mask)), np.arange(episodes)
    results: dict[int, EpisodeResult] = {}
    for episode in each.tolist():
        batch.begin(episode, 0, 0, np.random.default_rng(episode))
    for _ in range(n_units):
        chosen = by_unit[each, problem.graph.unit_of[batch.observation.op[:, 0]]]
        offered = batch.observation.mask[each, chosen] > 0
        _, done = batch.step(np.where(offered, chosen, batch.observation.mask.argmax(axis=1)))
        for episode in np.flatnonzero(done).tolist():
            results.setdefault(episode, batch.result(episode))
    return np.ascontiguousarray(by_unit[:, problem.graph.unit_of]), [results[at] for at in each.tolist()]


@pytest.mark.parametrize("order", ORDERS)
def test_without_memory_masks_every_order_reaches_every_placement_and_its_step(order: str) -> None:
    rng = np.random.default_rng(0)
    problem = Problem(random_graph(rng, 10), random_cluster(rng, 2))
    placements, results = walked(problem, order, "none")
    np.testing.assert_array_equal([result.device_of for result in results], placements)
    assert [result.step_time_s for result in results] == step_times_s(problem, placements).tolist()


def test_a_memory_mask_keeps_the_placements_but_some_orders_have_dead_ends() -> None:
    sizes = {"a": 1, "b": 1, "c": 3, "d": 3}
    ops = [{"name": op, "flops": 1e9 * size, "resident_bytes": size} for op, size in sizes.items()]
    devices = tuple(Device(name, "k", 4.0, 1e12, 1e12, 0.0) for name in ("d0", "d1"))
    cluster = Cluster("c", devices, np.full((2, 2), 1e9), np.zeros((2, 2)))
    problem = Problem(build_graph("g", "f", ops, []), cluster)
    dead_ends, reached = {}, {}
    for order in ("alpha", "cost"):
        _, results = walked(problem, order, "memory")
        dead_ends[order] = sum(result.infeasible for result in results)
        reached[order] = {tuple(result.device_of.tolist()) for result in results if not result.infeasible}
    assert reached["alpha"] == reached["cost"]
    assert len(reached["cost"]) == 4
    assert dead_ends["alpha"] > 0
    assert dead_ends["cost"] == 0
