"""Every placement can be reached in every order; a memory mask keeps that, but ends some walks early."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.simulate import step_times_s
from graphs import build_graph
from graphs.orders import ORDERS
from graphs.system.array_types import IntArray
from tests.envs.random_problems import random_cluster, random_graph


def walked(problem: Problem, order: str, mask: str) -> tuple[EpisodeBatch, IntArray, list[str]]:
    """Walks to all placements; returns the batch, devices by unit, and how each walk ended."""
    n_units = len(problem.graph.units)
    placements = np.array(list(itertools.product(range(problem.n_devices), repeat=n_units)))
    batch = EpisodeBatch([problem], len(placements), orders=(order,), mask=mask)
    for episode in range(batch.n):
        batch.begin(episode, 0, 0, np.random.default_rng(episode))
    ends = [""] * batch.n
    for decision in range(n_units):
        units = problem.graph.unit_of[batch.observation.op[:, 0]]
        chosen = placements[np.arange(batch.n), units]
        offered = batch.observation.mask[np.arange(batch.n), chosen] > 0
        ends = [end or ("" if may else "refused") for end, may in zip(ends, offered, strict=True)]
        _, done = batch.step(np.where(offered, chosen, batch.observation.mask.argmax(axis=1)))
        assert decision < n_units - 1 or done.all()
        for episode in np.flatnonzero(done).tolist():
            is_early = batch.result(episode).infeasible
            ends[episode] = ends[episode] or ("dead end" if is_early else "reached")
    return batch, placements, ends


@pytest.mark.parametrize("order", ORDERS)
def test_without_memory_masks_every_order_reaches_every_placement_and_its_step(order: str) -> None:
    for seed in range(3):
        rng = np.random.default_rng(seed)
        problem = Problem(random_graph(rng, 10), random_cluster(rng, 2))
        batch, placements, ends = walked(problem, order, "none")
        devices_of = np.ascontiguousarray(placements[:, problem.graph.unit_of])
        for at, step_s in enumerate(step_times_s(problem, devices_of)):
            assert ends[at] == "reached"
            assert batch.device_of(at).tolist() == devices_of[at].tolist()
            assert batch.result(at).step_time_s == step_s


def test_a_memory_mask_keeps_the_placements_but_some_orders_have_dead_ends() -> None:
    ops = [
        {"name": name, "flops": size * 1e9, "resident_bytes": size}
        for name, size in zip("abcd", (1, 1, 3, 3))
    ]
    devices = tuple(Device(f"d{at}", "k", 4.0, 1e12, 1e12, 0.0) for at in range(2))
    problem = Problem(
        build_graph("g", "f", ops, []), Cluster("c", devices, np.full((2, 2), 1e9), np.zeros((2, 2)))
    )
    ends = {order: walked(problem, order, "memory")[2] for order in ("alpha", "cost")}
    reached = {
        order: [at for at, end in enumerate(found) if end == "reached"] for order, found in ends.items()
    }
    assert reached["alpha"] == reached["cost"]
    assert len(reached["cost"]) == 4
    assert "dead end" in ends["alpha"]
    assert "dead end" not in ends["cost"]
