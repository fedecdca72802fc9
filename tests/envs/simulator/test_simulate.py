"""The simulator against its plain-Python reference, and after moves."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster
from envs.objective import simulate
from envs.placements.placement import Placement, PlacementError
from envs.problem import Problem
from envs.simulator.arrays import empty_timeline
from envs.simulator.kernels import run_many
from envs.simulator.resume import commit, new_pair, run_moved
from envs.simulator.simulate import simulate_many, simulate_problem, step_time_s
from graphs import OpGraph, build_graph
from tests.envs.hand_made_problems import cluster_of
from tests.envs.random_problems import problems, random_cluster, random_graph, random_placement
from tests.specification.simulator import simulate_plainly

Case = tuple[OpGraph, Cluster, np.ndarray]


PAIR = cluster_of("a", "a", latency_s=0.5)


def op(name: str, seconds: float = 1.0, **more: object) -> dict[str, object]:
    return {"name": name, "seconds": {"a": seconds}, **more}


@settings(max_examples=500, deadline=None)
@given(problems(), st.sampled_from([0.0, 0.0, 0.0, 0.3]), st.integers(0, 2**32 - 1))
def test_equals_the_plain_reference(case: Case, absent: float, seed: int) -> None:
    graph, cluster, device_of = case
    device_of = np.where(np.random.default_rng(seed).random(graph.n_ops) < absent, -1, device_of)
    fast = simulate_problem(Problem(graph, cluster), device_of)
    plain = simulate_plainly(graph, cluster, device_of.tolist())
    placed = np.flatnonzero(device_of >= 0).tolist()
    assert fast.total_s == plain.total_s
    np.testing.assert_array_equal(fast.start_s[placed], [plain.start[op] for op in placed])
    np.testing.assert_array_equal(fast.finish_s[placed], [plain.finish[op] for op in placed])
    np.testing.assert_allclose(fast.peak_bytes, plain.peak_bytes, rtol=1e-12, atol=1e-9)
    assert fast.transfer_bytes == pytest.approx(plain.transfer_bytes)


@settings(max_examples=150, deadline=None)
@given(problems(max_ops=100), st.integers(0, 2**32 - 1))
def test_moves_are_timed_as_from_scratch(case: Case, seed: int) -> None:
    graph, cluster, current = case
    problem, rng = Problem(graph, cluster), np.random.default_rng(seed)
    pair = new_pair(graph.n_ops, graph.n_tensors, cluster.n_devices)
    run_moved(problem.arrays, current, pair, 0, np.inf, work_of(problem, current))
    commit(pair)
    for _ in range(12):
        moves = np.isin(graph.unit_of, rng.integers(len(graph.units), size=int(rng.integers(1, 4))))
        device_of = np.where(moves, rng.integers(cluster.n_devices), current)
        first, work_s = int(np.flatnonzero(moves)[0]), work_of(problem, device_of)
        timeline = empty_timeline(graph.n_ops, graph.n_tensors, cluster.n_devices)
        total_s = np.zeros(1)
        run_many(problem.arrays, device_of[None], timeline, False, total_s, np.zeros((1, 0)))
        limit_s = total_s[0] * float(rng.choice([rng.uniform(0.3, 1.5), np.inf])) if total_s[0] else np.inf
        moved_s = run_moved(problem.arrays, device_of, pair, first, limit_s * (1 + 1e-9), work_s)
        assert moved_s == total_s[0] or (moved_s == np.inf and total_s[0] > limit_s)
        if moved_s == np.inf:
            continue
        for of_both, expected in zip(pair.timeline, timeline, strict=True):
            np.testing.assert_array_equal(of_both[1 - pair.current[0]], expected)
        if rng.random() < 0.5:
            commit(pair)
            current = device_of


def work_of(problem: Problem, device_of: np.ndarray) -> np.ndarray:
    """Sums the seconds of work of each device."""
    seconds = problem.op_seconds[np.arange(len(device_of)), device_of]
    return np.bincount(device_of, seconds, minlength=problem.n_devices).astype(np.float64)


@settings(max_examples=100, deadline=None)
@given(problems())
def test_one_device_takes_the_sum(case: Case) -> None:
    graph, cluster, _ = case
    alone = simulate(graph, cluster, Placement(np.zeros(graph.n_ops, dtype=np.int64)))
    free_op_at_the_end_s = alone.total_s - cluster.op_gap_s
    single_s = Problem(graph, cluster).single_device_s[0]
    assert single_s in (pytest.approx(alone.total_s), pytest.approx(free_op_at_the_end_s))
    assert alone.transfer_bytes == 0


@settings(max_examples=100, deadline=None)
@given(problems(), st.randoms(use_true_random=False))
def test_relabelling_identical_devices_changes_nothing(case: Case, random: object) -> None:
    graph, cluster, device_of = case
    n = cluster.n_devices
    alike = replace(
        cluster,
        devices=tuple(replace(cluster.devices[0], name=f"d{index}") for index in range(n)),
        bytes_per_s=np.ones((n, n)),
        latency_s=np.full((n, n), 0.25),
        n_half_bytes=0.5,
    )
    label = np.array(random.sample(range(n), n))  # type: ignore[attr-defined]
    here = simulate(graph, alike, Placement(device_of))
    there = simulate(graph, alike, Placement(label[device_of]))
    assert here.total_s == there.total_s
    np.testing.assert_allclose(here.peak_bytes, there.peak_bytes[label])


def test_weights_and_gradients_are_counted_once() -> None:
    ops = [
        op("w", 0.0, type="parameter", resident_bytes=40.0, colocate=0),
        op("mm", 1.0, colocate=0),
        op("grad", 1.0, phase="backward"),
        op("adam", 1.0, phase="optimizer", colocate=0),
    ]
    graph = build_graph("g", "", ops, [(0, 10.0, [1]), (1, 2.0, [2]), (2, 10.0, [3])])
    together = simulate(graph, PAIR, Placement(np.zeros(4, dtype=np.int64)))
    assert together.peak_bytes.tolist() == [42.0, 0.0]
    apart = simulate(graph, PAIR, Placement(np.array([0, 0, 1, 0])))
    assert apart.peak_bytes.tolist() == [42.0, 12.0]
    small = Problem(graph, PAIR).with_memory(np.full(2, 11.0))
    assert not simulate_problem(small, np.array([0, 0, 1, 0])).fits


@pytest.mark.parametrize("memory", [True, False])
def test_many_equals_one_by_one(memory: bool) -> None:
    rng = np.random.default_rng(3)
    graph, cluster = random_graph(rng, 60), random_cluster(rng, 3)
    problem = Problem(graph, cluster)
    rows = np.stack([random_placement(rng, graph, 3) for _ in range(17)])
    total_s, peak = simulate_many(problem, rows, memory=memory)
    assert total_s.tolist() == [step_time_s(problem, row) for row in rows]
    expected = [simulate_problem(problem, row).peak_bytes if memory else np.zeros(3) for row in rows]
    np.testing.assert_array_equal(peak, expected)


@pytest.mark.parametrize(("device_of", "message"), [([0, 1], "2"), ([0, -1, 0], "'b'"), ([0, 1, 7], "'c'")])
def test_bad_placements_are_refused(device_of: list[int], message: str) -> None:
    graph = build_graph("g", "", [op("a"), op("b"), op("c")], [])
    with pytest.raises(PlacementError, match=message):
        simulate(graph, PAIR, Placement(np.array(device_of)))
