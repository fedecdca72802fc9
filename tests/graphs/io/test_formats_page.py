"""The page of file formats: its examples are read by the readers, and its tables name the keys they know."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import envs.cluster.files as cluster_files
import envs.placements.files as placement_files
from envs.cluster.cluster import COPIES, ISSUE_PER, SCHEDULES, SHARING, TRANSFER_PER
from envs.objective import simulate
from graphs import graph_columns, limits, op_records
from graphs.io import graph_files
from graphs.system.json_files import MAX_DECOMPRESSED_BYTES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "reference" / "formats.md").read_text(encoding="utf-8")
NONE: frozenset[str] = frozenset()
KEYS = {
    "Graph": (graph_files.GRAPH_REQUIRED, graph_files.GRAPH_OPTIONAL),
    "Op": (op_records.OP_REQUIRED, op_records.OP_OPTIONAL),
    "Tensor": (graph_files.TENSOR_REQUIRED, graph_files.TENSOR_OPTIONAL),
    "Cluster": (cluster_files.REQUIRED, cluster_files.OPTIONAL),
    "Device": (cluster_files.DEVICE_KEYS, cluster_files.DEVICE_OPTIONAL),
    "Links": (cluster_files.LINK_REQUIRED, cluster_files.LINK_OPTIONAL),
    "Placement": (placement_files.KEYS, NONE),
}


def sections() -> dict[str, str]:
    """Text below each heading, by heading."""
    parts = re.split(r"^##+ (.*)$", PAGE, flags=re.M)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def table(text: str) -> dict[str, list[str]]:
    """Cells after the first of each row, by the key that the row is about."""
    rows = re.findall(r"^\| `(\w+)` \|(.*)\|$", text, flags=re.M)
    assert len({key for key, _ in rows}) == len(rows)
    return {key: [cell.strip() for cell in cells.split("|")] for key, cells in rows}


def examples() -> list[Any]:
    """The graph, the cluster and the placement."""
    return [json.loads(block) for block in re.findall(r"^```json\n(.*?)^```$", PAGE, flags=re.M | re.S)]


def test_every_table_is_checked() -> None:
    assert {heading for heading, text in sections().items() if table(text)} == KEYS.keys()


@pytest.mark.parametrize("heading", KEYS)
def test_tables_name_the_keys_that_the_readers_know(heading: str) -> None:
    required, optional = KEYS[heading]
    rows = table(sections()[heading])
    assert {key for key, cells in rows.items() if cells[2] == "required"} == required
    assert {key for key, cells in rows.items() if cells[2] != "required"} == optional


@pytest.mark.parametrize("heading", KEYS)
def test_examples_hold_every_key(heading: str) -> None:
    graph, cluster, placement = examples()
    holders = {
        "Graph": [graph],
        "Op": graph["ops"],
        "Tensor": graph["tensors"],
        "Cluster": [cluster],
        "Device": cluster["devices"],
        "Links": [cluster["links"]],
        "Placement": [placement],
    }
    required, optional = KEYS[heading]
    assert {key for holder in holders[heading] for key in holder} == required | optional


def test_the_examples_are_read_and_belong_together() -> None:
    values = examples()
    graph = graph_files.graph_from_json(values[0], "graph")
    cluster = cluster_files.cluster_from_json(values[1], "cluster")
    placement = placement_files.placement_from_json(values[2], "placement").resolve(graph, cluster)
    assert simulate(graph, cluster, placement).fits


def test_defaults_are_what_the_readers_fill_in() -> None:
    """A file of the required keys alone is read as one that spells the defaults of the tables out."""
    graph, cluster, _ = examples()
    short_op, short_tensor = {"name": "a"}, {"producer": 0, "consumers": []}
    required = KEYS["Graph"][0]
    short = {key: graph[key] for key in required} | {"ops": [short_op], "tensors": [short_tensor]}
    full = short | defaults("Graph") | {"ops": [short_op | defaults("Op")]}
    full |= {"tensors": [short_tensor | defaults("Tensor")]}
    read = [graph_files.graph_to_json(graph_files.graph_from_json(value, "here")) for value in (short, full)]
    assert read[0] == read[1]
    short = {key: cluster[key] for key in KEYS["Cluster"][0]}
    short["links"] = {key: cluster["links"][key] for key in KEYS["Links"][0]}
    full = short | defaults("Cluster") | {"links": short["links"] | defaults("Links")}
    made = [cluster_files.cluster_to_json(cluster_files.cluster_from_json(v, "here")) for v in (short, full)]
    assert made[0] == made[1]


def defaults(heading: str) -> dict[str, Any]:
    """The optional keys of a table with their defaults."""
    rows = table(sections()[heading])
    return {key: json.loads(cells[2].strip("`")) for key, cells in rows.items() if cells[2] != "required"}


def test_choices_are_all_named() -> None:
    rows = {heading: table(text) for heading, text in sections().items()}
    for choices, row in (
        (graph_columns.PHASES, rows["Op"]["phase"]),
        (graph_columns.DTYPES, rows["Op"]["dtype"]),
        (graph_columns.SOURCE_TYPES, rows["Op"]["type"]),
        (SCHEDULES, rows["Cluster"]["schedule"]),
        (SHARING, rows["Links"]["sharing"]),
        (TRANSFER_PER, rows["Links"]["transfer_per"]),
        (ISSUE_PER, rows["Cluster"]["issue_per"]),
        (COPIES, rows["Cluster"]["copies"]),
    ):
        assert all(f"`{choice}`" in row[3] for choice in choices)


def test_bounds_are_those_of_the_code() -> None:
    bounds = next(text for text in PAGE.split("\n\n") if text.startswith("| what | bounds |"))
    stated = {float(number) for number in re.findall(r"\d+e-?\d+", bounds)}
    kept = {limits.MAX_FLOPS, limits.MAX_BYTES, limits.MAX_SECONDS, limits.MIN_SECONDS}
    assert stated == kept | {limits.MIN_PER_S, limits.MAX_PER_S, limits.MAX_EXTENT}
    assert MAX_DECOMPRESSED_BYTES == 2**30
    assert "at most 1 GiB" in PAGE
