"""Placements under old and new costs: a graph of which one device should get both ops, or each one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.evaluation.spec import EvaluationSpec
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.fidelity.placements import (
    PlacementRow,
    compare_placements,
    held_out_graphs,
    placements_table,
)
from agent.placers.base import Budget
from envs.cluster.cluster import Cluster, ClusterError, Device
from envs.cluster.presets import get_cluster
from envs.costs.op_seconds import op_seconds
from graphs.dataset import load_family
from graphs.families import FAMILIES
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


def compare(
    folder: Path, old: Cluster, new: Cluster, placer: str = "single", graph: OpGraph | None = None
) -> list[PlacementRow]:
    clusters = tuple({each.name: each for each in (old, new)}.values())
    spec = EvaluationSpec((graph or chain(),), clusters, (placer,), budget=Budget(50))
    return compare_placements([(old, new)], spec, folder)


def test_a_placement_for_the_wrong_device_is_timed_where_it_runs(tmp_path: Path):
    """The old costs take device 0 for the fast one, but device 1 is."""
    (row,) = compare(tmp_path, cluster("old", FAST, SLOW), cluster("new", SLOW, FAST))
    assert (row.old_s, row.new_s, row.single_s) == (8, 2, 2)
    assert row.old_fits
    assert placements_table([row])[1] == ["old to new", "single", "1 of 1", "4.000", "4.000", "1.000"]


def test_equal_costs_change_nothing(tmp_path: Path):
    same = cluster("same", FAST, SLOW)
    rows = compare(tmp_path, same, same, "annealing")
    assert [row.old_s / row.new_s for row in rows] == [1.0]


def test_placements_that_do_not_fit_are_counted_out(tmp_path: Path):
    ops = [{"name": "a", "flops": 4, "resident_bytes": 100}]
    graph = build_graph("large", "toy", ops, [])
    new = cluster("new", replace(SLOW, memory_bytes=10), FAST)
    (row,) = compare(tmp_path, cluster("old", FAST, SLOW), new, graph=graph)
    assert (row.old_fits, row.new_fits) == (False, True)
    assert placements_table([row])[1][2:] == ["0 of 1", "-", "-", "-"]


def test_clusters_of_other_sizes_are_refused(tmp_path: Path):
    with pytest.raises(ClusterError, match="have 2 and 1 devices"):
        compare(tmp_path, cluster("two", FAST, SLOW), cluster("one", FAST))
    assert not list(tmp_path.iterdir())


def test_held_out_graphs_say_what_calibrated_costs_need(tmp_path: Path):
    """They cost as much as the shipped ones where costs need none of it."""
    shipped = load_family("cifar10")
    every = frozenset(f"{family}-{draw:02d}" for family in FAMILIES for draw in range(FAMILIES[family]))
    (graph,) = held_out_graphs(every - {"cifar10-23"}, 1, GraphCache(tmp_path))
    assert graph.name == "cifar10-23"
    assert graph.gemm.any()
    assert "fp32" in graph.dtypes
    (old,) = [each for each in shipped if each.name == graph.name]
    np.testing.assert_array_equal(*(op_seconds(each, get_cluster("4xv100")) for each in (graph, old)))
