"""Lower bounds: known answers, and never above what any placement reaches."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.evaluation.bounds import device_weights, lower_bound_s
from envs.cluster.cluster import COPIES
from envs.problem import Problem
from envs.simulator.simulate import simulate_many
from graphs.op_graph import build_graph
from tests.agent.placement_cases import make_cluster, random_problem


def problem_of(flops, tensors=(), n_devices=2, **rules):
    ops = [{"name": f"op{i}", "flops": value} for i, value in enumerate(flops)]
    return Problem(build_graph("g", "f", ops, tensors), make_cluster(n_devices, **rules))


def test_chain_takes_its_critical_path():
    problem = problem_of([1e9, 2e9, 3e9], [(0, 1.0, [1]), (1, 1.0, [2])])
    assert lower_bound_s(problem) == pytest.approx(6e-3 + 3e-6)


def test_independent_ops_share_the_work():
    problem = problem_of([1e9] * 6, n_devices=3)
    assert lower_bound_s(problem) == pytest.approx(2 * (1e-3 + 1e-6))


def test_a_gap_follows_every_op_but_the_last_of_a_device():
    problem = problem_of([1e9] * 6, n_devices=3, op_gap_s=1e-4)
    assert lower_bound_s(problem) == pytest.approx(2 * (1e-3 + 1e-6) + 1e-4)


def test_related_devices_share_work_by_speed():
    problem = problem_of([1e9] * 300, n_devices=2, slower=2.0)
    seconds = problem.op_seconds.sum(axis=0)
    assert lower_bound_s(problem) == pytest.approx(1 / (1 / seconds[0] + 1 / seconds[1]), rel=1e-2)


def test_work_between_a_source_and_a_sink_is_windowed():
    wide = [(0, 1.0, [1, 2, 3, 4]), *((i, 1.0, [5]) for i in range(1, 5))]
    problem = problem_of([1e9, *[1e9] * 4, 1e9], wide)
    assert lower_bound_s(problem) == pytest.approx(4 * (1e-3 + 1e-6))


def test_a_colocation_group_is_serial():
    ops = [{"name": f"op{i}", "flops": 1e9, "colocate": 0} for i in range(4)]
    problem = Problem(build_graph("g", "f", ops, []), make_cluster(4))
    assert lower_bound_s(problem) == pytest.approx(4 * (1e-3 + 1e-6))


def test_dual_ascent_finds_that_each_device_has_its_own_ops():
    occupied = np.array([[1.0, 100.0]] * 10 + [[100.0, 1.0]] * 10)
    weights = device_weights(occupied)
    assert (occupied * weights).min(axis=1).sum() == pytest.approx(10.0, rel=0.01)


def test_free_graph_has_bound_zero():
    assert lower_bound_s(problem_of([0.0, 0.0])) == 0.0


def test_the_host_issues_one_op_after_the_other():
    problem = problem_of([1e9] * 6, n_devices=3, issue_s=5e-3)
    assert lower_bound_s(problem) == pytest.approx(6 * 5e-3 + 1e-3 + 1e-6)


def test_ops_that_take_no_time_are_not_issued():
    problem = problem_of([1e9, 0.0, 1e9, 0.0], [(2, 1.0, [3])], issue_s=5e-3)
    assert lower_bound_s(problem) == pytest.approx(2 * 5e-3 + 1e-3 + 1e-6)


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10_000),
    st.integers(1, 4),
    st.sampled_from([0.0, 1e-4, 1e-2]),
    st.sampled_from(COPIES),
    st.sampled_from([0.0, 1e6]),
)
def test_no_placement_beats_the_bound(seed, n_devices, issue_s, copies, n_half_bytes):
    problem = random_problem(seed, n_ops=12, n_devices=n_devices)
    if problem.cluster.schedule == "program":
        cluster = replace(problem.cluster, issue_s=issue_s, copies=copies, n_half_bytes=n_half_bytes)
        problem = Problem(problem.graph, cluster)
    rng = np.random.default_rng(seed)
    units = rng.integers(n_devices, size=(64, len(problem.graph.units)))
    units[:n_devices] = np.arange(n_devices)[:, None]
    total_s, _ = simulate_many(problem, units[:, problem.graph.unit_of], memory=False)
    assert lower_bound_s(problem) <= total_s.min() * (1 + 1e-9)
