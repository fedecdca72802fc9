"""The one host thread, eager copies and the curve of links: timelines worked out by hand, and properties."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster, Device
from envs.domain_randomization import randomize_domain
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.simulate import StepTime, simulate_problem, step_time_s
from graphs import OpGraph, build_graph
from tests.envs.random_problems import random_cluster, random_graph, random_placement, with_slowdown

SEEDS = st.integers(0, 2**32 - 1)


def gpus(n_devices: int = 2, **rules: Any) -> Cluster:
    """Devices with links of 1 byte a second and 0.5 s of latency."""
    devices = tuple(Device(f"d{index}", "a", 100.0, 1.0, 1.0, 0.0) for index in range(n_devices))
    shape = (n_devices, n_devices)
    return Cluster("gpus", devices, np.ones(shape), np.full(shape, 0.5), **rules)


def ops(*seconds: float) -> list[dict[str, object]]:
    return [{"name": f"op{index}", "seconds": {"a": each}} for index, each in enumerate(seconds)]


def timed(graph: OpGraph, cluster: Cluster, *device_of: int) -> StepTime:
    return simulate_problem(Problem(graph, cluster), np.array(device_of))


def test_ops_of_all_devices_are_issued_one_after_the_other() -> None:
    graph = build_graph("g", "", ops(5.0, 1.0, 1.0), [])
    step = timed(graph, gpus(3, issue_s=2.0), 0, 1, 2)
    assert step.start_s.tolist() == [2.0, 4.0, 6.0]
    assert step.total_s == 7.0


def test_a_copy_is_issued_right_before_the_first_op_that_needs_it() -> None:
    # op0 is issued at 1 and ends at 2; op1 at 2, runs on d1 to 3; the copy at 3, it ends at 7 and arrives at
    # 7.5; op2, issued at 4, waits for it; op3 on d0, issued at 5, does not.
    graph = build_graph("g", "", ops(1.0, 1.0, 1.0, 1.0), [(0, 4.0, [2])])
    step = timed(graph, gpus(issue_s=1.0), 0, 1, 1, 0)
    assert step.start_s.tolist() == [1.0, 2.0, 7.5, 5.0]


def test_a_second_reader_needs_no_further_copy() -> None:
    graph = build_graph("g", "", ops(1.0, 1.0, 1.0), [(0, 1.0, [1, 2])])
    step = timed(graph, gpus(issue_s=4.0), 0, 1, 1)
    assert step.start_s.tolist() == [4.0, 12.0, 16.0]


def test_sources_and_ops_that_take_no_time_are_not_issued() -> None:
    graph = build_graph(
        "g",
        "",
        [{"name": "x", "type": "input"}, *ops(1.0, 0.0, 1.0)],
        [(0, 0.0, [1]), (1, 0.0, [2]), (2, 0.0, [3])],
    )
    step = timed(graph, gpus(issue_s=3.0), 0, 0, 0, 0)
    assert step.start_s.tolist() == [0.0, 3.0, 4.0, 6.0]


def test_one_transfer_to_all_devices_is_issued_once() -> None:
    graph = build_graph("g", "", ops(1.0, 1.0, 1.0), [(0, 1.0, [1, 2])])
    step = timed(graph, gpus(3, issue_s=4.0, transfer_per="tensor"), 0, 1, 2)
    assert step.start_s.tolist() == [4.0, 12.0, 16.0]
    assert timed(graph, gpus(3, issue_s=4.0), 0, 1, 2).start_s.tolist() == [4.0, 12.0, 20.0]


def test_an_eager_copy_occupies_both_devices_until_it_arrives() -> None:
    # The copy starts when op1 has left d0 at 3 and op0 d1 at 1, and arrives at 3 + 2 + 0.5.
    graph = build_graph("g", "", ops(1.0, 3.0, 1.0, 1.0), [(1, 2.0, [2])])
    eager = timed(graph, gpus(copies="eager"), 1, 0, 1, 0)
    assert eager.start_s.tolist() == [0.0, 0.0, 5.5, 5.5]
    stream = timed(graph, gpus(), 1, 0, 1, 0)
    assert stream.start_s.tolist() == [0.0, 0.0, 5.5, 3.0]


def test_an_eager_copy_waits_for_what_its_devices_run() -> None:
    # The tensor of op0 is there at 1, but d0 is busy to 5 and d1 to 8.
    graph = build_graph("g", "", ops(1.0, 4.0, 8.0, 1.0), [(0, 1.0, [3])])
    assert timed(graph, gpus(copies="eager"), 0, 0, 1, 1).start_s.tolist() == [0.0, 1.0, 0.0, 9.5]
    assert timed(graph, gpus(), 0, 0, 1, 1).start_s.tolist() == [0.0, 1.0, 0.0, 8.0]


def test_eager_copies_to_one_op_come_one_after_the_other() -> None:
    graph = build_graph("g", "", ops(1.0, 1.0, 1.0), [(0, 2.0, [2]), (1, 2.0, [2])])
    assert timed(graph, gpus(3, copies="eager"), 0, 1, 2).start_s[2] == 6.0
    assert timed(graph, gpus(3), 0, 1, 2).start_s[2] == 3.5


def test_a_transfer_of_the_half_size_runs_at_half_of_the_bandwidth() -> None:
    graph = build_graph("g", "", ops(1.0, 1.0), [(0, 4.0, [1])])
    n_half = np.array([[9.0, 4.0], [1.0, 9.0]])
    assert timed(graph, gpus(n_half_bytes=n_half), 0, 1).start_s[1] == 1.0 + 8.0 + 0.5
    assert timed(graph, gpus(n_half_bytes=n_half), 1, 0).start_s[1] == 1.0 + 5.0 + 0.5


def test_one_transfer_to_all_takes_the_largest_half_size() -> None:
    graph = build_graph("g", "", ops(1.0, 1.0), [(0, 4.0, [1])])
    n_half = np.array([[0.0, 1.0, 6.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    step = timed(graph, gpus(3, transfer_per="tensor", n_half_bytes=n_half), 0, 1)
    assert step.start_s[1] == 1.0 + 10.0 + 0.5


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.floats(0.01, 4.0), st.floats(1.0, 3.0))
def test_one_device_waits_for_the_host_and_more_for_a_slower_one(
    seed: int, issue_s: float, slower: float
) -> None:
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 30), random_cluster(rng, 1, schedule="program")
    cluster = replace(cluster, issue_per="op")
    seconds = Problem(graph, cluster).op_seconds[:, 0]
    totals = [
        step_time_s(Problem(graph, replace(cluster, issue_s=each)), np.zeros(graph.n_ops, dtype=np.int64))
        for each in (0.0, issue_s, slower * issue_s)
    ]
    assert totals == sorted(totals)
    takes_time = np.flatnonzero(seconds)
    if len(takes_time):
        assert totals[1] >= len(takes_time) * issue_s * (1 - 1e-12) + seconds[takes_time[-1]]


@settings(max_examples=100, deadline=None)
@given(SEEDS, st.sampled_from([0.0, 0.2]))
def test_on_chains_eager_copies_are_no_faster(seed: int, issue_s: float) -> None:
    rng = np.random.default_rng(seed)
    graph = build_graph("chain", "", ops(*rng.exponential(1.0, 12)), [(i, 1.0, [i + 1]) for i in range(11)])
    device_of = rng.integers(3, size=12)
    stream, eager = (
        step_time_s(Problem(graph, gpus(3, issue_s=issue_s, copies=copies)), device_of)
        for copies in ("stream", "eager")
    )
    assert eager >= stream


@settings(max_examples=50, deadline=None)
@given(SEEDS)
def test_the_rules_give_the_times_of_before_where_they_cost_nothing(seed: int) -> None:
    """The kernels compiled with the rules equal those compiled without them, to the last bit."""
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 40), random_cluster(rng, 3)
    cluster = with_slowdown(cluster, 1.0)
    plain = Problem(graph, replace(cluster, issue_s=0.0, copies="stream", n_half_bytes=0.0))
    with_rules = Problem(graph, plain.cluster)
    with_rules.__dict__["arrays"] = plain.arrays._replace(detailed=np.zeros(0, dtype=np.int64))
    device_of = random_placement(rng, graph, 3)
    assert plain.arrays.detailed is None
    for mine, other in zip(
        (simulate_problem(plain, device_of).finish_s, simulate_problem(plain, device_of).peak_bytes),
        (
            simulate_problem(with_rules, device_of).finish_s,
            simulate_problem(with_rules, device_of).peak_bytes,
        ),
        strict=True,
    ):
        np.testing.assert_array_equal(mine, other)


def test_a_batch_may_mix_clusters_with_and_without_the_rules() -> None:
    rng = np.random.default_rng(7)
    graph = random_graph(rng, 25)
    clusters = [gpus(2), gpus(3, issue_s=0.3, copies="eager"), gpus(2, n_half_bytes=2.0)]
    clusters += [with_slowdown(gpus(3), 2.0), gpus(2, issue_s=0.3, issue_per="step")]
    problems, n = [Problem(graph, cluster) for cluster in clusters], len(clusters)
    batch = EpisodeBatch(problems, n)
    for index in range(n):
        batch.begin(index, index, 0, rng)
    done = np.zeros(n, dtype=bool)
    while not done.any():
        done = batch.step(rng.integers(2, size=n))[1]
    assert done.all()
    for index, problem in enumerate(problems):
        result = batch.result(index)
        assert result.step_time_s == simulate_problem(problem, result.device_of).total_s


def test_domain_randomization_keeps_the_rules() -> None:
    rng = np.random.default_rng(0)
    n_half = np.arange(16.0).reshape(4, 4)
    cluster = gpus(4, issue_s=0.3, copies="eager", n_half_bytes=n_half)
    graph = random_graph(rng, 20)
    for _ in range(10):
        drawn = randomize_domain(Problem(graph, cluster), rng).cluster
        kept = [int(device.name[1:]) for device in drawn.devices]
        assert (drawn.issue_s, drawn.copies) == (0.3, "eager")
        np.testing.assert_array_equal(drawn.n_half_matrix, n_half[np.ix_(kept, kept)])


@pytest.mark.parametrize("copies", ["stream", "eager"])
def test_the_single_device_time_is_that_of_the_simulation(copies: str) -> None:
    graph = build_graph("g", "", ops(0.5, 3.0, 0.0, 0.5, 0.5), [])
    problem = Problem(graph, gpus(issue_s=1.0, op_gap_s=0.25, copies=copies))
    # Issued at 1, 2, 3 and 4; run from 1 to 1.5, 2 to 5, 5.25 to 5.75 and 6 to 6.5.
    assert problem.single_device_s.tolist() == [6.5, 6.5]
    assert step_time_s(problem, np.ones(5, dtype=np.int64)) == 6.5
