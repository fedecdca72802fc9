"""Data parallelism: answers worked out by hand, and what holds on any problem."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster, Device
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.all_reduce import all_reduce_seconds, gradients_of, ring_seconds
from envs.simulator.data_parallel import simulate_data_parallel
from graphs.dataset import load_family
from graphs.op_graph import OpGraph, build_graph
from tests.agent.placement_cases import GB, random_problem, training_graph
from tests.envs.random_problems import with_slowdown

MIB = 2.0**20


def unit_cluster(*speeds: float, bytes_per_s: float = MIB, latency_s: float = 0.0, **rules: float) -> Cluster:
    """Devices that compute `speeds` flops a second, 100 GB each."""
    devices = tuple(Device(f"d{i}", f"k{i}", 100 * GB, speed, 1e12, 0.0) for i, speed in enumerate(speeds))
    n = len(speeds)
    links, latencies = np.full((n, n), bytes_per_s), np.full((n, n), latency_s)
    return Cluster("units", devices, links, latencies, **rules)  # type: ignore[arg-type]


def two_layers(phase: str = "optimizer", first_mib: float = 2.0, second_mib: float = 8.0) -> OpGraph:
    """Forward of 10 s; two backward ops of 20 s, each of which makes a gradient; two updates of 5 s."""
    ops = [
        {"name": "forward", "flops": 10.0},
        {"name": "backward1", "flops": 20.0, "phase": "backward"},
        {"name": "backward0", "flops": 20.0, "phase": "backward"},
        {"name": "update1", "flops": 5.0, "phase": phase},
        {"name": "update0", "flops": 5.0, "phase": phase},
    ]
    tensors = [(0, 1.0, [1]), (1, first_mib * MIB, [3]), (1, 1.0, [2]), (2, second_mib * MIB, [4])]
    return build_graph("two-layers", "", ops, tensors)


@pytest.mark.parametrize(
    ("first_mib", "slowdown", "step_s"),
    [
        # The first gradient is there at 30 s and, as 2 MiB fill the first bucket, reduced by 32 s; the other
        # at 50 s, by 58 s. Updates run from 50 s to 55 s and from 58 s to 63 s.
        (2.0, 1.0, 63.0),
        # 28 MiB from 30 s to 58 s, then 8 MiB, which waited, to 66 s, and an update.
        (28.0, 1.0, 71.0),
        # Half a MiB does not fill the first bucket: 8.5 MiB from 50 s to 58.5 s, before both updates.
        (0.5, 1.0, 68.5),
        # The 2 s of the first all-reduce compute but 1 s: the second gradient is there at 51 s.
        (2.0, 2.0, 64.0),
    ],
)
def test_an_all_reduce_hides_behind_the_backward_pass_and_updates_wait_for_it(first_mib, slowdown, step_s):
    cluster = with_slowdown(unit_cluster(1.0, 1.0), slowdown)
    found = simulate_data_parallel(Problem(two_layers(first_mib=first_mib), cluster))
    assert found.devices == (0, 1)
    assert (found.step_s, found.seconds_per_batch) == pytest.approx((step_s, step_s / 2))
    assert found.gradient_bytes == (first_mib + 8) * MIB
    assert found.computing_s >= 60.0
    assert found.fits


def test_the_slowest_of_equal_batches_bounds_the_step():
    # Alone, the devices take 60 s and 90 s; two batches in 90 s and a little are more than one in 60 s.
    infinite = unit_cluster(1.0, 2 / 3, bytes_per_s=1e15)
    found = simulate_data_parallel(Problem(two_layers(), infinite))
    assert found.devices == (0, 1)
    assert found.step_s == pytest.approx(90.0, abs=1e-6)
    # A device of a third of the speed takes 180 s for a batch, longer than the other for two.
    alone = simulate_data_parallel(Problem(two_layers(), unit_cluster(1.0, 1 / 3, bytes_per_s=1e15)))
    assert (alone.devices, alone.seconds_per_batch) == ((0,), 60.0)


def test_a_ring_goes_round_by_round_over_its_slowest_link():
    cluster = unit_cluster(1.0, 1.0, 1.0, bytes_per_s=1e3, latency_s=0.5, transfer_gap_s=0.25)
    speeds = np.array(cluster.bytes_per_s)
    speeds[2, 0] = 100.0
    problem = Problem(two_layers(), replace(cluster, bytes_per_s=speeds, n_half_bytes=50.0))
    # 4 rounds of 600 / 3 bytes and the 50 bytes of a ramp at 100 bytes/s, latency and gap.
    assert ring_seconds(problem, np.arange(3), np.array([600.0])) == pytest.approx([4 * 3.25])
    assert ring_seconds(problem, np.arange(1), np.array([600.0])) == [0.0]


def test_small_tensors_of_several_nodes_go_up_and_down_a_tree_whose_depth_is_a_logarithm():
    node = np.arange(8) // 2
    is_near = node[:, None] == node
    cluster = replace(
        unit_cluster(*[1.0] * 8),
        bytes_per_s=np.where(is_near, 1e3, 100.0),
        latency_s=np.where(is_near, 0.5, 2.0),
    )
    problem, all_of_them, sizes = Problem(two_layers(), cluster), np.arange(8), np.array([100.0, 1e5])
    # Up and down: 1 s for the bytes, log2(4) times between nodes and once within one.
    tree_s = [2 * (1.0 + 2 * 2.0 + 0.5), 2 * (1e3 + 2 * 2.0 + 0.5)]
    ring_s = ring_seconds(problem, all_of_them, sizes)
    found = all_reduce_seconds(problem, all_of_them, sizes)
    assert found == pytest.approx([tree_s[0], ring_s[1]])
    assert (ring_s[0], tree_s[1]) > (tree_s[0], ring_s[1])
    for alike in ([0, 1], [0, 2, 4, 6]):
        ring = np.array(alike)
        assert (
            all_reduce_seconds(problem, ring, sizes).tolist() == ring_seconds(problem, ring, sizes).tolist()
        )


def test_inference_reduces_nothing():
    forward = build_graph("forward", "", [{"name": "op", "flops": 6.0}], [])
    found = simulate_data_parallel(Problem(forward, unit_cluster(1.0, 1.0, 1.0)))
    assert (found.n_replicas, found.step_s, found.gradient_bytes) == (3, 6.0, 0.0)


def test_gradients_are_what_updates_read_or_without_updates_what_nothing_reads():
    graph = training_graph(2, 1)
    made_by = [graph.op_names[op] for op in graph.tensor_producer[gradients_of(graph)]]
    assert sorted(made_by) == ["b0.l0.backward", "b0.l1.backward"]
    ops = [{"name": "forward"}, {"name": "backward", "phase": "backward"}]
    bare = build_graph("bare", "", ops, [(0, 1.0, [1]), (1, 2.0, []), (0, 3.0, [])])
    assert gradients_of(bare).tolist() == [1]


def test_replicas_stand_where_the_memory_is():
    problem = Problem(training_graph(3, 1), unit_cluster(1e9, 1e9, 1e9, bytes_per_s=1e15))
    found = simulate_data_parallel(problem.with_memory(np.array([100, 2, 100]) * GB))
    assert (found.devices, found.fits) == ((0, 2), True)
    assert (found.peak_bytes >= 3 * GB).all()
    nowhere = simulate_data_parallel(problem.with_memory(np.full(3, 2 * GB)))
    assert (nowhere.n_replicas, nowhere.fits) == (1, False)


@given(st.integers(0, 200), st.integers(1, 4))
@settings(max_examples=25, deadline=None)
def test_replicas_need_as_long_as_the_slowest_computes_and_never_lose_to_one_device(seed, n_devices):
    problem = random_problem(seed, n_ops=20, n_devices=n_devices)
    found = simulate_data_parallel(problem)
    assert found.step_s >= found.computing_s * (1 - 1e-9)
    assert found.seconds_per_batch <= problem.scale_s * (1 + 1e-9)


@pytest.mark.parametrize("family", ["cifar10", "gpt"])
@pytest.mark.parametrize("rules", [{}, {"op_gap_s": 1e-5}, {"issue_s": 2e-5}, {"schedule": "fifo"}])
def test_with_infinite_links_equal_devices_share_the_work_without_loss(family, rules):
    instant = {"bytes_per_s": np.full((4, 4), 1e15), "latency_s": np.zeros((4, 4)), "transfer_gap_s": 0.0}
    free = replace(get_cluster("4xv100"), **{**instant, **rules})
    problem = Problem(load_family(family)[0], free).with_memory(np.full(4, 100 * GB))
    found = simulate_data_parallel(problem)
    assert found.n_replicas == 4
    assert found.step_s == pytest.approx(problem.scale_s, rel=1e-4)
    slow_links = replace(problem.cluster, bytes_per_s=np.full((4, 4), 1e9))
    slower = simulate_data_parallel(replace(problem, cluster=slow_links))
    assert slower.seconds_per_batch > found.seconds_per_batch
