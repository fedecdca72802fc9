"""Copies beside ops, and steps that are issued at once: timelines worked out by hand, and properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster
from envs.placement.episodes import EpisodeBatch
from envs.placement.observation.features import DEVICE_FEATURES, N_DEVICE_FEATURES
from envs.problem import Problem
from envs.problem_arrays import N_CLOCKS, OVERLAP_CLOCKS
from envs.simulator.simulate import simulate_problem, step_time_s
from graphs import OpGraph, build_graph
from tests.envs.random_problems import random_cluster, random_graph, random_placement, with_slowdown
from tests.envs.simulator.test_host_thread import gpus, ops, timed

SEEDS = st.integers(0, 2**32 - 1)


def slowed(*slowdowns: float, **rules: Any) -> Cluster:
    """Builds `gpus` whose ops take as many times as long while copies run."""
    cluster = gpus(len(slowdowns), **rules)
    devices = zip(cluster.devices, slowdowns, strict=True)
    return replace(cluster, devices=tuple(replace(device, overlap_slowdown=by) for device, by in devices))


@pytest.mark.parametrize(("seconds", "finish_s"), [(10.0, 13.0), (1.0, 3.0)])
def test_an_op_is_slowed_while_a_copy_issued_before_it_runs(seconds: float, finish_s: float) -> None:
    # op1 lets the copy run from 1 to 5; op2 starts beside it and makes half as much headway until 5.
    graph = build_graph("g", "", ops(1.0, 1.0, seconds), [(0, 4.0, [1])])
    step = timed(graph, slowed(2.0, 1.0), 0, 1, 0)
    assert step.start_s.tolist() == [0.0, 5.5, 1.0]
    assert step.finish_s[2] == finish_s
    assert timed(graph, slowed(1.0, 2.0), 0, 1, 0).finish_s[2] == 1.0 + seconds


def test_ops_issued_before_a_copy_make_its_devices_late() -> None:
    # The copy runs from 1 to 5; beside it op1 runs to 4 on d0, op2 to 8 on d1, at half and a quarter of their
    # speed. op3 reads the copy, op4 does not.
    graph = build_graph("g", "", ops(1.0, 3.0, 8.0, 1.0, 1.0), [(0, 4.0, [3])])
    step = timed(graph, slowed(2.0, 4.0), 0, 0, 1, 1, 0)
    assert step.finish_s[:3].tolist() == [1.0, 4.0, 8.0]
    assert step.start_s[3:].tolist() == [8.0 + 4 * 0.75, 4.0 + 3 * 0.5]


def test_a_device_makes_up_for_being_late_while_it_waits() -> None:
    # op1 runs to 2 and is late by half a second, but its device waits for the copy until 5.5.
    graph = build_graph("g", "", ops(1.0, 2.0, 1.0, 1.0), [(0, 4.0, [2])])
    assert timed(graph, slowed(1.0, 2.0), 0, 1, 1, 1).start_s.tolist() == [0.0, 0.0, 5.5, 6.5]


def test_copies_at_one_time_slow_no_more_than_one() -> None:
    # Over their own links, copies of op0 run from 1 to 5 and from 1 to 3; op1 runs to 11.
    graph = build_graph("g", "", ops(1.0, 10.0, 1.0, 1.0, 1.0), [(0, 4.0, [2]), (0, 2.0, [3])])
    step = timed(graph, slowed(2.0, 1.0, 1.0, sharing="pair"), 0, 0, 1, 2, 0)
    assert step.start_s[4] == 11.0 + 4 * 0.5
    one_after_the_other = timed(graph, slowed(2.0, 1.0, 1.0), 0, 0, 1, 2, 0)
    assert one_after_the_other.start_s[4] == 11.0 + 6 * 0.5


@pytest.mark.parametrize("issue_s", [0.0, 0.3])
def test_eager_copies_never_run_beside_ops(issue_s: float) -> None:
    rng = np.random.default_rng(0)
    for _ in range(20):
        graph = random_graph(rng, 30)
        device_of = random_placement(rng, graph, 3)
        finish_s = [
            timed(graph, slowed(by, by, by, copies="eager", issue_s=issue_s), *device_of).finish_s
            for by in (1.0, 3.0)
        ]
        np.testing.assert_array_equal(*finish_s)


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(1.0, 10.0))
def test_no_op_starts_earlier_because_of_copies(seed: int, slowdown: float) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 40), random_cluster(rng, 3, schedule="program")
    device_of = random_placement(rng, graph, 3)
    alone, beside = (
        simulate_problem(Problem(graph, with_slowdown(cluster, by)), device_of) for by in (1.0, slowdown)
    )
    assert (beside.start_s >= alone.start_s).all()
    assert (beside.finish_s >= alone.finish_s).all()


@pytest.mark.parametrize("incremental", [False, True])
def test_the_lookahead_sees_what_copies_slow(incremental: bool) -> None:
    # On d0 op2 runs beside the copy, from 1 to 13; on d1 alone, from 6.5 to 16.5. The mean op takes 4 s.
    problem = Problem(build_graph("g", "", ops(1.0, 1.0, 10.0), [(0, 4.0, [1])]), slowed(2.0, 1.0))
    batch = EpisodeBatch([problem], 1, incremental=incremental)
    batch.begin(0, 0, 0, np.random.default_rng(0))
    for device in (0, 1):
        batch.step(np.array([device]))
    seen = batch.observation.devices.reshape(2, N_DEVICE_FEATURES)
    for name in ("finish_over_earliest", "rollout_step_time_near_over_least"):
        column = [feature.name for feature in DEVICE_FEATURES].index(name)
        np.testing.assert_allclose(seen[:, column], [0.0, np.log1p(3.5 / 4.0)], rtol=1e-6)


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_the_rule_gives_the_times_of_before_where_nothing_is_slowed(seed: int) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 40), random_cluster(rng, 3, schedule="program")
    plain = Problem(graph, with_slowdown(cluster, 1.0))
    with_rule = Problem(graph, plain.cluster)
    rules = plain.arrays.rules.copy()
    rules[OVERLAP_CLOCKS], rules[N_CLOCKS] = rules[N_CLOCKS], rules[N_CLOCKS] + 6
    compiled_in = np.zeros(0, dtype=np.int64)
    with_rule.__dict__["arrays"] = plain.arrays._replace(rules=rules, detailed=compiled_in, slows=compiled_in)
    device_of = random_placement(rng, graph, 3)
    assert plain.arrays.slows is None
    for mine, other in zip(
        vars(simulate_problem(plain, device_of)).values(),
        vars(simulate_problem(with_rule, device_of)).values(),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)


def test_a_step_that_is_issued_at_once_waits_for_the_host_once() -> None:
    graph = chain(1.0, 1.0, 0.0, 1.0)
    cluster = gpus(issue_s=4.0, issue_per="step")
    assert timed(graph, cluster, 0, 0, 0, 0).start_s.tolist() == [4.0, 5.0, 6.0, 6.0]
    assert timed(graph, cluster, 0, 1, 1, 1).start_s.tolist() == [4.0, 6.5, 7.5, 7.5]
    assert Problem(graph, cluster).single_device_s.tolist() == [7.0, 7.0]


def test_what_is_sent_from_the_start_is_issued_with_the_step() -> None:
    graph = build_graph("g", "", [{"name": "x", "type": "input"}, *ops(1.0)], [(0, 1.0, [1])])
    assert timed(graph, gpus(issue_s=4.0, issue_per="step"), 0, 1).start_s[1] == 4.0 + 1.0 + 0.5


def test_a_step_without_work_is_not_issued() -> None:
    problem = Problem(chain(0.0, 0.0), gpus(issue_s=4.0, issue_per="step"))
    assert problem.single_device_s.tolist() == [0.0, 0.0]
    assert step_time_s(problem, np.zeros(2, dtype=np.int64)) == 0.0


def chain(*seconds: float) -> OpGraph:
    return build_graph("g", "", ops(*seconds), [(at, 1.0, [at + 1]) for at in range(len(seconds) - 1)])


@settings(max_examples=50, deadline=None)
@given(SEEDS, st.floats(0.01, 4.0))
def test_to_issue_all_at_once_is_never_slower(seed: int, issue_s: float) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 40), with_slowdown(random_cluster(rng, 3, schedule="program"), 1.0)
    device_of = random_placement(rng, graph, 3)
    at_once, one_by_one = (
        simulate_problem(Problem(graph, replace(cluster, issue_s=issue_s, issue_per=per)), device_of).finish_s
        for per in ("step", "op")
    )
    assert (at_once <= one_by_one).all()
