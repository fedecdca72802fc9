"""Placements under old and new costs: a graph of which one device should get both ops, or each one."""

from dataclasses import replace

import numpy as np
import pytest

from agent.experiments.fidelity_placements import compare_placements, placements_table
from agent.placers.base import PLACERS, Budget
from envs.cluster.cluster import Cluster, ClusterError, Device
from graphs.op_graph import OpGraph, build_graph

SLOW = Device("a", "made-up", 1e9, flops_per_s=1.0, bytes_per_s=1e9, launch_s=0)
FAST = replace(SLOW, flops_per_s=4.0)


def cluster(name: str, *devices: Device) -> Cluster:
    shape = (len(devices), len(devices))
    named = tuple(replace(device, name=f"gpu{index}") for index, device in enumerate(devices))
    return Cluster(name, named, np.full(shape, 1e9), np.zeros(shape))


def chain() -> OpGraph:
    """Two ops of 4 flops, one after the other."""
    ops = [{"name": "a", "flops": 4}, {"name": "b", "flops": 4}]
    return build_graph("chain", "toy", ops, [(0, 8, [1])])


def test_a_placement_for_the_wrong_device_is_timed_where_it_runs():
    """The old costs take device 0 for the fast one, but device 1 is."""
    old, new = cluster("old", FAST, SLOW), cluster("new", SLOW, FAST)
    (row,) = compare_placements(old, new, [chain()], [PLACERS["single"]], Budget(10))
    assert (row.old_s, row.new_s, row.single_s) == (8, 2, 2)
    assert row.old_fits
    assert placements_table([row])[1] == ["old to new", "single", "1 of 1", "4.000", "4.000", "1.000"]


def test_equal_costs_change_nothing():
    same = cluster("same", FAST, SLOW)
    rows = compare_placements(same, same, [chain()], [PLACERS["annealing"]], Budget(50))
    assert [row.old_s / row.new_s for row in rows] == [1.0]


def test_placements_that_do_not_fit_are_counted_out():
    ops = [{"name": "a", "flops": 4, "resident_bytes": 100}]
    graph = build_graph("large", "toy", ops, [])
    new = cluster("new", replace(SLOW, memory_bytes=10), FAST)
    (row,) = compare_placements(cluster("old", FAST, SLOW), new, [graph], [PLACERS["single"]], Budget(10))
    assert (row.old_fits, row.new_fits) == (False, True)
    assert placements_table([row])[1][2:] == ["0 of 1", "-", "-", "-"]


def test_clusters_of_other_sizes_are_refused():
    with pytest.raises(ClusterError, match="have 2 and 1 devices"):
        list(compare_placements(cluster("two", FAST, SLOW), cluster("one", FAST), [], [], Budget(1)))
