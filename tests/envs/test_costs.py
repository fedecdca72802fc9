"""Op times: free, measured, roofline, none."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.costs import CostError, op_seconds
from graphs.op_graph import build_graph

FAST = Device("fast", "v100", 1e9, flops_per_s=100.0, bytes_per_s=10.0, launch_s=0.5)
SLOW = Device("slow", "k80", 1e9, flops_per_s=10.0, bytes_per_s=5.0, launch_s=0.25)
CLUSTER = Cluster("c", (FAST, SLOW), np.ones((2, 2)), np.zeros((2, 2)))


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


def test_a_time_beyond_floats_is_refused() -> None:
    graph = build_graph("g", "", [{"name": "a"}, {"name": "mm", "flops": 1e308}], [])
    crawling = replace(CLUSTER, devices=(FAST, replace(SLOW, flops_per_s=1e-300)))
    with pytest.raises(CostError, match="graph 'g': op 'mm' takes for ever on 'slow'"):
        op_seconds(graph, crawling)
