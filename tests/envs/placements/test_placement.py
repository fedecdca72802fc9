"""Placements: the check that they suit a graph and a cluster, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.cluster.presets import get_cluster
from envs.placements.files import read_placement, write_placement
from envs.placements.placement import Placement, PlacementError, check_placement, single_device
from graphs.op_graph import build_graph

GRAPH = build_graph(
    "g",
    "",
    [{"name": "w", "type": "parameter", "colocate": 5}, {"name": "mm", "colocate": 5}, {"name": "add"}],
    [(0, 1, [1]), (1, 1, [2])],
)
CLUSTER = get_cluster("2xk80")


def placed(*device_of: int) -> Placement:
    return Placement(np.array(device_of, dtype=np.int64))


def test_a_good_placement_passes() -> None:
    check_placement(GRAPH, CLUSTER, placed(1, 1, 0))
    check_placement(GRAPH, CLUSTER, placed(1, -1, 0), partial=True)
    check_placement(GRAPH, CLUSTER, single_device(GRAPH, 1))


@pytest.mark.parametrize(
    ("device_of", "partial", "message"),
    [
        ([1, 1], False, r"is int64 \(2,\); expected 3 integers"),
        ([[1, 1, 0]], False, r"is int64 \(1, 3\)"),
        ([1.0, 1.0, 0.0], False, r"is float64 \(3,\)"),
        ([True, True, False], False, r"is bool \(3,\)"),
        ([1, 1, -1], False, r"op 2 \('add'\) is not placed; give every op a device"),
        ([1, 1, -2], True, r"op 2 \('add'\) is on device -2, but cluster '2xk80' has 0 to 1"),
        ([1, 1, 2], False, r"op 2 \('add'\) is on device 2, but cluster '2xk80' has 0 to 1"),
        ([1, 0, 0], False, r"group 5 is split: 'w' is on 'gpu1' but 'mm' is on 'gpu0'; put them on one"),
        ([1, 0, -1], True, r"group 5 is split"),
    ],
)
def test_a_bad_placement_is_refused(device_of: list[Any], partial: bool, message: str) -> None:
    with pytest.raises(PlacementError, match=f"^placement of graph 'g': .*{message}"):
        check_placement(GRAPH, CLUSTER, Placement(np.array(device_of)), partial=partial)


@pytest.mark.parametrize("colocate", [None, 3])
def test_a_source_is_not_parted_from_its_first_reader(colocate: int | None) -> None:
    """The lower bound and all placers take them for one unit; parted, a step could go below the bound."""
    parameter = {"name": "w", "type": "parameter", "colocate": colocate}
    graph = build_graph("g", "", [parameter, {"name": "mm"}, {"name": "add"}], [(0, 1, [1, 2]), (1, 1, [2])])
    check_placement(graph, CLUSTER, placed(1, 1, 0))
    message = r"unit is split: 'w' is on 'gpu0' but 'mm' is on 'gpu1'.*first reader$"
    with pytest.raises(PlacementError, match=message):
        check_placement(graph, CLUSTER, placed(0, 1, 0))


def test_a_written_placement_is_read_back_and_an_unfinished_one_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="is not placed"):
        write_placement(tmp_path / "p.json", GRAPH, CLUSTER, placed(1, 1, -1))
    assert not list(tmp_path.iterdir())
    write_placement(tmp_path / "p.json", GRAPH, CLUSTER, placed(1, 1, 0))
    assert read_placement(tmp_path / "p.json", GRAPH, CLUSTER).device_of.tolist() == [1, 1, 0]
