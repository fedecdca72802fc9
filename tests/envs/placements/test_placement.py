"""Placements: the check that they suit a graph and a cluster, and their files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.cluster.presets import get_cluster
from envs.placements.files import placement_to_json, read_placement, write_placement
from envs.placements.placement import Placement, PlacementError, check_placement, single_device
from graphs.op_graph import build_graph
from graphs.system.json_files import FileFormatError, write_json_atomic

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
    with pytest.raises(
        PlacementError, match=r"unit is split: 'w' is on 'gpu0' but 'mm' is on 'gpu1'.*first reader$"
    ):
        check_placement(graph, CLUSTER, placed(0, 1, 0))


def test_a_written_placement_is_read_back(tmp_path: Path) -> None:
    write_placement(tmp_path / "p.json", GRAPH, CLUSTER, placed(1, 1, 0))
    np.testing.assert_array_equal(
        read_placement(tmp_path / "p.json", GRAPH, CLUSTER).device_of, placed(1, 1, 0).device_of
    )


def test_an_unfinished_placement_is_not_written(tmp_path: Path) -> None:
    with pytest.raises(PlacementError, match="is not placed"):
        write_placement(tmp_path / "p.json", GRAPH, CLUSTER, placed(1, 1, -1))
    assert not list(tmp_path.iterdir())


def record(**changes: Any) -> dict[str, Any]:
    return placement_to_json(GRAPH, CLUSTER, placed(1, 1, 0)) | changes


GOOD = record()["device_of"]
BAD_RECORDS = {
    "not an object": ("p", "is a string; expected an object"),
    "format": (record(format=1), "format is 1; expected 'placewalk.placement/1'"),
    "unknown key": (record(time=1), "unknown key 'time'"),
    "device_of": (record(device_of=[0, 1]), "device_of: is an array; expected an object, op name to device"),
    "device is an index": (
        record(device_of=GOOD | {"mm": 0}),
        "device of 'mm': is a number; expected a string",
    ),
    "stages without end": (record(stage_of={"mm": 10**9, "add": 0}), "stage of 'mm' is 1.*; expected 0 to 1"),
    "another graph": (record(graph="h"), "is for graph 'h', not for 'g'"),
    "another cluster": (record(cluster="4xv100"), "is for cluster '4xv100', not for '2xk80'"),
    "unknown op": (record(device_of=GOOD | {"x": "gpu0"}), "op 'x' is not in graph 'g'"),
    "missing ops": (record(device_of={"mm": "gpu0"}), "op 'w' and 1 more have no device"),
    "unknown device": (record(device_of=GOOD | {"add": "gpu7"}), "'gpu7', but the devices .* are gpu0, gpu1"),
    "split group": (record(device_of=GOOD | {"mm": "gpu0"}), "colocation group 5 is split"),
}


@pytest.mark.parametrize(("value", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_what_does_not_suit_is_refused_in_one_line(tmp_path: Path, value: object, message: str) -> None:
    path = tmp_path / "p.json"
    write_json_atomic(path, value)
    with pytest.raises((FileFormatError, PlacementError), match=rf"p\.json: .*{message}") as caught:
        read_placement(path, GRAPH, CLUSTER)
    assert "\n" not in str(caught.value)
