"""Device kinds, clusters named by them, and how far their links are from collectives that others measured."""

from __future__ import annotations

import csv
import gzip
from collections import defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.host import EAGER_ISSUE_S
from envs.cluster.kinds import CONTEXT_BYTES, KINDS, MIB, Kind, measured_links
from envs.cluster.named import BOXES, NAMES, NETWORK_LATENCY_S, kind_named, named_cluster
from envs.cluster.presets import PRESETS, get_cluster
from envs.problem import Problem
from envs.simulator.all_reduce import ring_seconds
from envs.simulator.simulate import step_time_s
from graphs.op_graph import build_graph

CHAIN = build_graph("chain", "", [{"name": "a", "flops": 1e9}, {"name": "b", "flops": 1e9}], [(0, 1e6, [1])])
RESULTS = Path(__file__).parents[3] / "agent" / "lab" / "results"
LINKS = measured_links()


def test_stand_ins_of_peaks() -> None:
    v100, a100 = KINDS["v100-sxm2-16gb"].device(), KINDS["a100-sxm4-40gb"].device()
    assert v100.peak("tf32") == v100.peak("bf16") == v100.peak("fp32") == v100.flops_per_s == 15.7e12
    assert (a100.peak("tf32"), a100.peak("bf16"), a100.peak("fp16")) == (156e12, 312e12, 312e12)
    assert a100.peak("") == a100.peak("int") == a100.flops_per_s == 19.5e12
    assert replace(a100, peaks={}).peak("fp16") == 19.5e12
    assert (v100.peak("fp8"), a100.peak("fp8"), a100.peak("int8")) == (125e12, 312e12, 624e12)
    assert replace(a100, peaks={"fp32": 1e12}).peak("fp8") == 1e12
    assert KINDS["h100-sxm5-80gb"].device().peak("fp8") == 2 * 989.4e12


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tensors_cannot_have_the_memory_of_the_context_nor_what_is_fragmented(kind: Kind) -> None:
    left = kind.memory_bytes - CONTEXT_BYTES
    assert kind.device().memory_bytes == pytest.approx(0.95 * left)
    assert kind.memory_bytes > 7600 * MIB


@pytest.mark.parametrize(
    ("preset", "name", "share", "datasheet_gb_per_s"),
    [
        ("4xv100-sxm2", "v100-nvlink", 2 / 3, 50),
        ("4xa100-pcie", "pcie3", 2.0, 31.5),
        ("8xa100-sxm4", "a100-nvswitch", 1.0, 300),
        ("4xh100-sxm5", "a100-nvswitch", 1.5, 450),
        ("a100+v100", "pcie3", 1.0, 15.75),
        ("3090+2080+titan", "pcie3", 1.0, 15.75),
    ],
)
def test_calibrated_presets_have_the_numbers_of_the_file(
    preset: str, name: str, share: float, datasheet_gb_per_s: float
) -> None:
    cluster, link = get_cluster(preset), LINKS[name]
    assert {device.kind for device in cluster.devices} <= set(KINDS)
    np.testing.assert_allclose(cluster.bytes_per_s, share * link.bytes_per_s)
    np.testing.assert_array_equal(cluster.latency_s, link.latency_s)
    np.testing.assert_allclose(cluster.n_half_matrix, share * link.n_half_bytes)
    assert (cluster.issue_s, cluster.issue_per) == (EAGER_ISSUE_S, "op")
    assert 0.6e9 * datasheet_gb_per_s < cluster.bytes_per_s.max() < 1e9 * datasheet_gb_per_s


def step_s(cluster: Cluster, *device_of: int) -> float:
    return step_time_s(Problem(CHAIN, cluster), np.array(device_of))


@pytest.mark.parametrize("kind", dict.fromkeys((*NAMES, *KINDS)))
def test_every_kind_makes_cards_nodes_and_steps(kind: str) -> None:
    one, two, nodes = (named_cluster(name) for name in (kind, f"2x{kind}", f"2x2x{kind}"))
    assert (one.n_devices, two.n_devices, nodes.n_devices) == (1, 2, 4)
    assert {device.kind for device in nodes.devices} == {kind_named(kind)}
    assert step_s(one, 0, 0) < step_s(two, 0, 1) < step_s(nodes, 0, 2)


@given(st.integers(1, 6), st.integers(1, 9), st.sampled_from(NAMES), st.integers(1, 800))
def test_nodes_are_linked_within_as_one_node_and_between_by_the_rate(
    n_nodes: int, n: int, kind: str, gbps: int
) -> None:
    name = f"{n_nodes}x{n}x{kind}" + f"@{gbps}g" * (n_nodes > 1)
    cluster, node = named_cluster(name), named_cluster(f"{n}x{kind}")
    assert (cluster.name, cluster.n_devices) == (name, n_nodes * n)
    assert len({device.name for device in cluster.devices}) == n_nodes * n
    for matrix, one in (
        (cluster.bytes_per_s, node.bytes_per_s),
        (cluster.latency_s, node.latency_s),
        (cluster.n_half_matrix, node.n_half_matrix),
    ):
        blocks = matrix.reshape(n_nodes, n, n_nodes, n).swapaxes(1, 2)
        assert all((blocks[at, at] == one).all() for at in range(n_nodes))
        assert (matrix == matrix.T).all()
    if n_nodes > 1:
        network = LINKS["gh200-nodes"].bytes_per_s * gbps / 200
        assert cluster.bytes_per_s[0, -1] == pytest.approx(min(network, node.bytes_per_s[0, -1]))
        assert cluster.latency_s[0, -1] == NETWORK_LATENCY_S


def test_short_names_mean_what_presets_of_these_names_do() -> None:
    for preset in ("4xv100-sxm2", "4xa100-pcie", "8xa100-sxm4", "4xh100-sxm5"):
        assert named_cluster(preset).devices == PRESETS[preset]().devices
    assert get_cluster("2x8xh100-sxm5:9").name == "2x8xh100-sxm5:9"
    assert get_cluster("128x8xb200").n_devices == 1024


def test_kinds_in_one_host_share_its_slower_links() -> None:
    cluster = get_cluster("2xa100-pcie+t4")
    assert [device.kind for device in cluster.devices] == ["a100-pcie-40gb"] * 2 + ["t4"]
    assert (cluster.bytes_per_s == get_cluster("2xt4").bytes_per_s[0, 1]).all()


def test_links_follow_from_the_box() -> None:
    sharing = {kind: named_cluster(f"4x{kind}").sharing for kind in NAMES}
    assert {kind for kind in NAMES if sharing[kind] == "pair"} == {
        "v100-sxm2",
        "v100-sxm2-32gb",
        "gh200",
        "mi300x",
    }
    assert get_cluster("2x4xmi300x").sharing == "egress"
    of_nodes = [get_cluster(f"{n}xv100-sxm2").bytes_per_s[0, -1] for n in (2, 3, 4, 5)]
    assert of_nodes == pytest.approx([67.94e9, 67.94e9, 2 / 3 * 67.94e9, 67.94e9 / 2])
    assert get_cluster("3xl40s").bytes_per_s[0, 1] < get_cluster("2xl40s").bytes_per_s[0, 1] / 3
    assert {kind.box for kind in KINDS.values()} == set(BOXES)


@pytest.mark.parametrize(
    ("name", "clause"),
    [
        ("8xh100", r"no kind 'h100' \(did you mean h100-pcie or h100-sxm5 or h100-nvl\?\)"),
        ("4090", r"no kind '4090' \(did you mean rtx4090\?\)"),
        ("2xL4", r"no kind 'L4' \(did you mean l4 or"),
        ("9xv9", "no kind 'v9'; write NxKIND, NODESxNxKIND@RATEg or NxKIND"),
        ("l4+", "no kind ''"),
        ("2x2x2xl4", "no kind '2xl4'"),
        ("0xl4", "it has 1 to 1024 devices"),
        ("129x8xb200", "it has 1 to 1024 devices"),
        ("9" * 5000 + "xl4", "it has 1 to 1024 devices"),
        ("1024xl4+l4", "it has 1 to 1024 devices"),
        ("2x2xl4+t4", "kinds that differ stand in one node"),
        ("a100-sxm4+l4", "different kinds share a node only as PCIe cards"),
        ("2xl4@25g", "a rate is gigabits a second between nodes, as @200g"),
        ("2x2xl4@0g", "a rate is gigabits"),
        ("2x2xl4@25", "a rate is gigabits"),
        ("\n", r"unknown cluster '\\n': there is no kind"),
        ("", "unknown cluster ''"),
        (
            "5xv100",
            r"unknown cluster '5xv100': there is no kind 'v100' .did you mean v100-pcie or .*; write Nx.*"
            r"NAME:N .*, or the path .* `evaluate.py --list-clusters` lists kinds and presets",
        ),
        ("4xv100:5", "write '4xv100:N' with N devices, 1 to 4"),
        ("4xv100:0", "write '4xv100:N'"),
        ("placeto-k80:", "write 'placeto-k80:N' with N devices, 1 to 1024"),
        ("placeto-k80:-1", "write 'placeto-k80:N'"),
        ("placeto-k80:²", "write 'placeto-k80:N'"),
        ("placeto-k80:99999999", "write 'placeto-k80:N'"),
        ("random", "^cluster 'random': only trainings on simulated steps draw clusters"),
    ],
)
def test_a_wrong_name_is_one_line(name: str, clause: str) -> None:
    with pytest.raises(ClusterError, match=clause) as caught:
        get_cluster(name)
    assert str(caught.value).isprintable()


def error_line(name: str, cluster: Cluster, rows: list[dict[str, str]]) -> str:
    """The medians of three classes of size, and median and 90th percentile of all, as a line of a table."""
    n = cluster.n_devices
    sizes, measured_s = (np.array([float(row[key]) for row in rows]) for key in ("n_bytes", "measured_s"))
    half = np.array([1.0 if row["collective"] == "all_reduce" else 0.5 for row in rows])
    errors = np.abs(half * ring_seconds(Problem(CHAIN, cluster), np.arange(n), sizes) / measured_s - 1)
    classes = np.searchsorted([MIB / 4, 16 * MIB], sizes, side="right")
    cells = [*(np.median(errors[classes == each]) for each in range(3)), *np.quantile(errors, [0.5, 0.9])]
    return f"| {name} | {len(rows)} | {' | '.join(f'{cell:.1%}' for cell in cells)} |"


def test_links_are_as_far_from_measured_collectives_as_their_page_says() -> None:
    """The rows are those that no fit saw."""
    rows_of: defaultdict[str, list[dict[str, str]]] = defaultdict(list)
    with gzip.open(RESULTS / "costs_of_links_collectives.csv.gz", "rt", encoding="utf-8") as file:
        for row in csv.DictReader(file):
            rows_of[f"{row['gpus']}x{row['box']}"].append(row)
    lines = [error_line(name, named_cluster(name), rows) for name, rows in rows_of.items()]
    for preset in ("8xa100-sxm4", "4xh100-sxm5"):
        lines.append(error_line(f"{preset}, the preset", PRESETS[preset](), rows_of[preset]))
    print("\n".join(lines))
    assert len(lines) == 6 * 3 + 2
    page = (RESULTS / "costs_of_links.md").read_text(encoding="utf-8")
    assert not set(lines) - set(page.splitlines())
