"""Coarsened problems: the times of their ops, and the cost of their placements op by op."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster, Device
from envs.coarse_problem import coarse_problem
from envs.placement.placement import Placement, check_placement
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem, step_time_s
from graphs import OpGraph, build_graph
from tests.benchmarks.cases import layered_graph, v100s
from tests.envs.random_problems import problems


@given(problems(), st.integers(1, 20))
def test_a_coarse_op_takes_as_long_as_its_ops(
    case: tuple[OpGraph, Cluster, np.ndarray], n_groups: int
) -> None:
    graph, cluster, _ = case
    problem = Problem(graph, replace(cluster, issue_s=0.0))
    coarse = coarse_problem(problem, n_groups)
    assert coarse.op_seconds.shape == (coarse.graph.n_ops, cluster.n_devices)
    rests = cluster.op_gap_s * np.maximum((problem.op_seconds > 0).sum(axis=0) - 1, 0)
    assert coarse.single_device_s == pytest.approx(problem.op_seconds.sum(axis=0) + rests)
    assert coarse.footprint_bytes.sum() == pytest.approx(problem.footprint_bytes.sum())


@given(problems(), st.integers(1, 20))
def test_on_one_device_the_coarse_step_is_the_step(
    case: tuple[OpGraph, Cluster, np.ndarray], n_groups: int
) -> None:
    graph, cluster, _ = case
    problem = Problem(graph, replace(cluster, issue_s=0.0))
    coarse = coarse_problem(problem, n_groups)
    for device in range(cluster.n_devices):
        placed = np.full(coarse.graph.n_ops, device)
        expanded = coarse.coarsening.expand(placed)
        check_placement(graph, cluster, Placement(expanded))
        step_s = simulate_problem(problem, expanded).total_s
        # Ops of no time that come last wait for the device's rest only where they are ops of their own.
        assert simulate_problem(coarse, placed).total_s == pytest.approx(step_s, abs=cluster.op_gap_s + 1e-9)


@pytest.mark.parametrize(("issue_s", "expected_s"), [(0.5, 6.5), (1.0, 7.0), (3.0, 19.0)])
def test_equal_ops_are_issued_in_the_time_of_the_step(issue_s: float, expected_s: float) -> None:
    ops = [{"name": f"op{index}", "seconds": {"gpu": 1.0}} for index in range(6)]
    graph = build_graph("chain", "", ops, [(index, 1.0, [index + 1]) for index in range(5)])
    device = Device("d", "gpu", 100.0, 1.0, 1.0, 0.0)
    problem = Problem(graph, Cluster("one", (device,), np.ones((1, 1)), np.zeros((1, 1)), issue_s=issue_s))
    coarse = coarse_problem(problem, 1)
    assert len(coarse.graph.units) == 1
    for each in (problem, coarse):
        assert step_time_s(each, np.zeros(each.graph.n_ops, dtype=np.int64)) == pytest.approx(expected_s)
        assert each.single_device_s == pytest.approx(expected_s)


def test_less_memory_leaves_the_times_of_coarse_ops() -> None:
    problem = Problem(layered_graph(50), v100s(2, "program"))
    coarse = coarse_problem(problem, 10)
    half_bytes = 0.5 * problem.cluster.memory_bytes
    assert not problem.with_memory(np.ones(2)).always_fits
    assert not coarse.with_memory(np.ones(2)).always_fits
    assert (coarse.with_memory(half_bytes).op_seconds == coarse.op_seconds).all()
    assert (coarse.with_memory(half_bytes).cluster.memory_bytes == half_bytes).all()
