"""Op times: free, measured, roofline, none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.costs.op_seconds import CostError, op_seconds
from envs.problem import Problem
from graphs.limits import MAX_SECONDS, MIN_SECONDS
from graphs.op_graph import build_graph

FAST = Device("fast", "v100", 1e9, flops_per_s=100.0, bytes_per_s=10.0, launch_s=0.5)
SLOW = Device("slow", "k80", 1e9, flops_per_s=10.0, bytes_per_s=5.0, launch_s=0.25)
CLUSTER = Cluster("c", (FAST, SLOW), np.ones((2, 2)), np.zeros((2, 2)))
ALONE = {"bytes_per_s": np.ones((1, 1)), "latency_s": np.zeros((1, 1))}


def test_known_times() -> None:
    ops: list[dict[str, object]] = [
        {"name": "weights", "type": "parameter", "flops": 100, "seconds": {"k80": 9.0}},
        {"name": "batch", "type": "input", "bytes_moved": 100},
        {"name": "arithmetic", "flops": 200, "bytes_moved": 10},
        {"name": "traffic", "flops": 100, "bytes_moved": 30},
        {"name": "measured", "flops": 100, "seconds": {"k80": 7.0}},
        {"name": "measured as nothing", "flops": 100, "seconds": {"k80": 0.0}},
        {"name": "metadata"},
    ]
    seconds = op_seconds(build_graph("g", "", ops, []), CLUSTER)
    expected = [[0, 0], [0, 0], [2.5, 20.25], [3.5, 10.25], [1.5, 7], [1.5, 0], [0, 0]]
    np.testing.assert_allclose(seconds, expected)
    assert seconds.dtype == np.float64
    assert seconds.flags.c_contiguous


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        ({"flops": 5e10}, "5e\\+13 s"),
        ({"bytes_moved": 1e-12}, "1e-18 s"),
        ({"seconds": {"k80": 1e-300}}, "1e-300 s"),
    ],
    ids=["long", "short", "measured"],
)
def test_an_op_time_beyond_physics_is_refused(op: dict[str, object], seconds: str) -> None:
    graph = build_graph("g", "", [{"name": "a"}, {"name": "mm"} | op], [])
    odd = replace(CLUSTER, devices=(FAST, replace(SLOW, flops_per_s=1e-3, bytes_per_s=1e6, launch_s=0.0)))
    message = f"graph 'g' on cluster 'c': op 1 \\('mm'\\) takes {seconds} on 'slow'; a time is 0, or from"
    with pytest.raises(CostError, match=message):
        Problem(graph, odd)


@pytest.mark.parametrize(
    ("sizes", "message"),
    [
        ((4.0, 1e13), "tensor 1 takes 1e\\+13 s from 'slow' to 'fast'; a time is 0, or from"),
        ((5e-324, 4.0), "tensor 0 takes 4.94066e-324 s from 'fast' to 'slow'; a time is 0, or from"),
        ((4.0, 0.0, 1e-16), "tensor 2 takes 1e-16 s from 'fast' to 'slow'; a time is 0, or from"),
    ],
    ids=["long", "shortest", "short"],
)
def test_a_transfer_time_beyond_physics_is_refused(sizes: tuple[float, ...], message: str) -> None:
    tensors = [(0, size, [1]) for size in sizes]
    graph = build_graph("g", "", [{"name": "a"}, {"name": "b"}], tensors)
    with pytest.raises(CostError, match=message):
        Problem(graph, replace(CLUSTER, bytes_per_s=np.array([[0.0, 1.0], [1.0 - 1e-9, 0.0]])))
    assert Problem(graph, replace(CLUSTER, devices=(FAST,), **ALONE)).op_seconds.shape == (2, 1)


@pytest.mark.parametrize(
    ("sizes", "n_half", "message"),
    [
        ((4.0, 9.9e8), 2e7, "tensor 1 takes 1.01e\\+09 s from"),
        ((0.0, 1e-16), [[0.0, 0.0], [1.0, 0.0]], "tensor 1 takes 1e-16 s from 'fast' to 'slow'"),
    ],
    ids=["long", "short"],
)
def test_what_a_link_adds_counts_in_a_transfer_time(
    sizes: tuple[float, ...], n_half: object, message: str
) -> None:
    graph = build_graph("g", "", [{"name": "a"}, {"name": "b"}], [(0, size, [1]) for size in sizes])
    with pytest.raises(CostError, match=message):
        Problem(graph, replace(CLUSTER, n_half_bytes=np.array(n_half)))
    assert Problem(graph, replace(CLUSTER, n_half_bytes=1.0)).n_devices == 2


def test_times_at_the_bounds_are_times() -> None:
    seconds = [0.0, MIN_SECONDS, MAX_SECONDS / 2]
    ops = [{"name": f"op{at}", "seconds": {"v100": value}} for at, value in enumerate(seconds)]
    problem = Problem(build_graph("g", "", ops, [(0, 1e9, [1])]), CLUSTER)
    np.testing.assert_array_equal(problem.op_seconds[:, 0], seconds)
