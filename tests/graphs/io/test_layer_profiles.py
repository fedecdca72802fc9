"""Layer profiles of PipeDream and Piper as op graphs."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from graphs.io.graph_files import read_graphs
from graphs.io.layer_profiles import read_pipedream_profile, read_piper_profile
from graphs.system.json_files import FileFormatError

DATA = Path(__file__).parent / "data"
REFERENCES = Path(__file__).parents[2] / "envs" / "pipeline" / "data" / "pipedream_graphs.jsonl.gz"
COLUMNS = ("flops", "bytes_moved", "resident_bytes", "colocate", "tensor_producer", "tensor_bytes")
NODE = (
    "{} -- ReLU() -- forward_compute_time=1.0, backward_compute_time=2.0, "
    "activation_size=4.0, parameter_size=0.0"
)


@pytest.mark.parametrize("title", ["gnmt", "resnet18"])
def test_pipedream_profile_equals_the_reference_graph(title: str) -> None:
    found = read_pipedream_profile(DATA / f"{title}.txt.gz", kind="fast")
    reference = next(graph for graph in read_graphs(REFERENCES) if graph.name == title)
    for column in ("name", "family", "op_names", "op_types", "phases", "modules"):
        assert getattr(found, column) == getattr(reference, column)
    for column in COLUMNS:
        np.testing.assert_array_equal(getattr(found, column), getattr(reference, column))
    np.testing.assert_array_equal(found.consumers.ptr, reference.consumers.ptr)
    np.testing.assert_array_equal(found.consumers.items, reference.consumers.items)
    np.testing.assert_array_equal(found.seconds["fast"], reference.seconds["fast"])


def test_piper_profile_has_the_times_memory_and_edges_of_its_layers() -> None:
    path = DATA / "bert32a100.json.gz"
    record = json.loads(gzip.decompress(path.read_bytes()))
    found = read_piper_profile(path, kind="a100", unit_s=1e-3)
    at = {name: index for index, name in enumerate(found.op_names)}
    for node in record["nodes"]:
        plain, recomputed = node["TMPCs"]["1"]
        title = f"{node['name']}{node['id']}"
        forward, backward = at[f"{title}/forward"], at[f"{title}/backward"]
        seconds = found.seconds["a100"]
        total_s = (seconds[forward] + seconds[backward]) * 1e3
        assert total_s == pytest.approx(plain["timePerSample"])
        assert total_s + seconds[forward] * 1e3 == pytest.approx(recomputed["timePerSample"])
        held = sum(
            found.resident_bytes[at[f"{title}/{part}"]]
            for part in ("weight", "forward")
            if f"{title}/{part}" in at
        )
        assert held == plain["memoryUsageB"]
        kept = [
            found.tensor_bytes[tensor]
            for tensor in range(found.n_tensors)
            if found.tensor_producer[tensor] == forward and backward in found.consumers.row(tensor)
        ]
        assert kept == [plain["memoryUsageA"]]
    names = {node["id"]: f"{node['name']}{node['id']}" for node in record["nodes"]}
    forward_edges = {
        (int(found.tensor_producer[tensor]), int(reader)): float(found.tensor_bytes[tensor])
        for tensor in range(found.n_tensors)
        for reader in found.consumers.row(tensor)
    }
    for edge in record["edges"]:
        one, other = names[edge["sourceId"]], names[edge["destId"]]
        size = edge["communicationCost"]
        assert forward_edges[at[f"{one}/forward"], at[f"{other}/forward"]] == size
        assert forward_edges[at[f"{other}/backward"], at[f"{one}/backward"]] == size


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        ([], "holds no layer"),
        ([NODE.format("a"), "nonsense"], ":2: is no node and no edge"),
        ([NODE.format("a"), NODE.format("a")], "the same name"),
        ([NODE.format("a"), "\ta -- b"], ":2: names layer 'b'"),
        ([NODE.format("a"), NODE.format("b"), "\ta -- b", "\tb -- a"], "form a cycle"),
        ([NODE.format("a").replace("=1.0", "=-1.0")], "'-1.0' is no finite number"),
        ([NODE.format("a").replace("=1.0", "=1e999")], "'1e999' is no finite number"),
        ([NODE.format("a").replace("=1.0", "=1-1")], "'1-1' is no finite number"),
    ],
)
def test_pipedream_profile_that_is_wrong_is_refused(tmp_path: Path, lines: list[str], message: str) -> None:
    path = tmp_path / "graph.txt"
    path.write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(FileFormatError, match=message):
        read_pipedream_profile(path, kind="fast")


def without_vanilla(record: dict[str, Any]) -> None:
    record["nodes"][3]["TMPCs"]["1"] = record["nodes"][3]["TMPCs"]["1"][1:]


def without_degree(record: dict[str, Any]) -> None:
    record["nodes"][3]["TMPCs"] = {}


def to_nowhere(record: dict[str, Any]) -> None:
    record["edges"][5]["destId"] = 999


def negative(record: dict[str, Any]) -> None:
    record["edges"][5]["communicationCost"] = -1.0


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (without_vanilla, "node 3: has no variant 'vanilla'"),
        (without_degree, "node 3: TMPCs has no entry '1'"),
        (to_nowhere, "edge 5: names layer '999'"),
        (negative, "edge 5: communicationCost: -1.0 is no finite number"),
    ],
)
def test_piper_profile_that_is_wrong_is_refused(
    tmp_path: Path, damage: Callable[[dict[str, Any]], None], message: str
) -> None:
    record = json.loads(gzip.decompress((DATA / "bert32a100.json.gz").read_bytes()))
    damage(record)
    path = tmp_path / "piper.json"
    path.write_text(json.dumps(record), encoding="utf-8")
    with pytest.raises(FileFormatError, match=message):
        read_piper_profile(path, kind="fast")
