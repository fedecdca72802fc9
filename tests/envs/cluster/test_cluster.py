"""Clusters: rules, files, presets and the hosts that issue their ops."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.files import cluster_from_json, cluster_to_json, read_cluster, write_cluster
from envs.cluster.host import EAGER_ISSUE_S, GRAPH_ISSUE_S, HOSTS, eager_issue_s, with_host
from envs.cluster.presets import PRESETS, get_cluster
from envs.costs.calibration import calibration_of
from tests.agent.placement_cases import make_cluster
from tests.record_cases import cluster_record, with_device, with_links

EAGER, GRAPH, NONE = (EAGER_ISSUE_S, "op"), (GRAPH_ISSUE_S, "step"), (0.0, "op")


def read() -> Cluster:
    return cluster_from_json(cluster_record(), "here")


def test_every_field_arrives() -> None:
    cluster = read()
    assert (cluster.name, cluster.schedule, cluster.sharing) == ("c", "fifo", "pair")
    assert (cluster.transfer_per, cluster.op_gap_s, cluster.transfer_gap_s) == ("tensor", 1e-6, 2e-6)
    assert [(device.name, device.kind) for device in cluster.devices] == [("gpu0", "k80"), ("gpu1", "k80")]
    np.testing.assert_array_equal(cluster.memory_bytes, [1.2e10, 1.2e10])
    np.testing.assert_array_equal(cluster.bytes_per_s, np.full((2, 2), 7.6e9))
    np.testing.assert_array_equal(cluster.latency_s, [[0, 1e-6], [2e-6, 0]])


def test_what_is_optional_arrives_and_is_written_where_it_differs() -> None:
    links = {"bytes_per_s": 1e9, "latency_s": 0, "n_half_bytes": [[0, 1e4], [2e4, 0]]}
    rules = {"schedule": "program", "issue_s": 5e-6, "issue_per": "step", "copies": "eager", "links": links}
    record = with_device(overlap_slowdown=2.5, peaks={"fp16": 65e12}) | rules
    cluster = cluster_from_json(record, "here")
    assert (cluster.issue_s, cluster.issue_per, cluster.copies) == (5e-6, "step", "eager")
    assert [(each.overlap_slowdown, dict(each.peaks)) for each in cluster.devices] == [
        (1.0, {}),
        (2.5, {"fp16": 65e12}),
    ]
    written = cluster_to_json(cluster)
    assert {key: written[key] for key in ("issue_s", "issue_per", "copies")}.items() <= rules.items()
    assert written["devices"] == record["devices"]
    assert written["links"]["n_half_bytes"] == cluster.n_half_matrix.tolist() == [[0, 1e4], [2e4, 0]]
    assert cluster_to_json(cluster_from_json(written, "again")) == written
    assert "issue_per" not in cluster_to_json(read())


@pytest.mark.parametrize("cluster", [build() for build in PRESETS.values()], ids=PRESETS.keys())
def test_written_clusters_are_read_back(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "cluster.json"
    write_cluster(path, cluster)
    assert cluster_to_json(read_cluster(path)) == cluster_to_json(cluster)
    assert get_cluster(str(path)).devices == cluster.devices


def test_rules_hold_without_a_file() -> None:
    cluster = read()
    for changes, message in (
        ({"bytes_per_s": np.ones((3, 3))}, r"bytes_per_s of the links has shape \(3, 3\); use \(2, 2\)"),
        ({"n_half_bytes": np.ones((3, 3))}, r"n_half_bytes of the links has shape .*; use one number, or"),
        ({"latency_s": np.full((2, 2), np.nan)}, "latency_s is nan"),
        ({"bytes_per_s": np.array([[np.nan, 1], [1, 1]])}, "bytes_per_s is nan"),
        ({"devices": (replace(cluster.devices[0], peaks={"fp6": 1e12}),) * 2}, "peaks has 'fp6'; use dtypes"),
    ):
        with pytest.raises(ClusterError, match=message):
            replace(cluster, **changes)  # type: ignore[arg-type]
    assert cluster_from_json(with_links(bytes_per_s=[[0, 1], [1, 0]]), "here").bytes_per_s[0, 0] == 0


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "\x1b[2J"])
def test_names_can_be_written_and_read_back(name: str) -> None:
    cluster = read()
    for changes in (
        {"name": name},
        {"devices": (replace(cluster.devices[0], name=name), cluster.devices[1])},
        {"devices": (replace(cluster.devices[0], kind=name), cluster.devices[1])},
    ):
        with pytest.raises(ClusterError, match="give a name of printable characters"):
            replace(cluster, **changes)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("2xk80", ["k80"] * 2),
        ("2xrtx3060", ["rtx3060"] * 2),
        ("4xv100", ["v100"] * 4),
        ("8xa100", ["a100"] * 8),
        ("4xh100", ["h100"] * 4),
        ("2x4xa100", ["a100"] * 8),
        ("gpu+cpu", ["v100", "xeon"]),
        ("placeto-k80", ["k80"] * 2),
        ("placeto-k80:5", ["k80"] * 5),
        ("a100+v100", ["a100-pcie-40gb", "v100-pcie-32gb"]),
        ("3090+2080+titan", ["rtx3090", "rtx2080", "titan-rtx"]),
    ],
)
def test_presets_are_named_and_sized(name: str, kinds: list[str]) -> None:
    cluster = get_cluster(name)
    assert cluster.name == name
    assert [device.kind for device in cluster.devices] == kinds
    assert cluster.schedule == ("fifo" if name.startswith("placeto") else "program")


def test_a_count_takes_the_first_devices_of_a_preset() -> None:
    whole, part = get_cluster("2x4xa100"), get_cluster("2x4xa100:5")
    assert (part.name, part.n_devices) == ("2x4xa100:5", 5)
    assert part.devices == whole.devices[:5]
    assert (part.bytes_per_s == whole.bytes_per_s[:5, :5]).all()
    assert (part.latency_s == whole.latency_s[:5, :5]).all()
    for name in PRESETS:
        assert get_cluster(f"{name}:1").n_half_matrix.shape == (1, 1)


@pytest.mark.parametrize("name", ["4xh100-sxm5", "4xv100", "gpu+cpu", "a100+v100:1"])
def test_a_host_sets_what_it_issues_and_in_which_time(name: str) -> None:
    cluster = get_cluster(name)
    assert with_host(cluster, None) is cluster
    for start in (cluster, with_host(cluster, "graph"), with_host(cluster, "none")):
        assert [host_of(with_host(start, host)) for host in HOSTS] == [EAGER, GRAPH, NONE]
        assert with_host(start, "eager").devices == cluster.devices


def host_of(cluster: Cluster) -> tuple[float, str]:
    return cluster.issue_s, cluster.issue_per


def test_an_eager_host_keeps_a_measured_time() -> None:
    measured = make_cluster(issue_s=4e-6)
    assert [host_of(with_host(measured, host)) for host in HOSTS] == [(4e-6, "op"), GRAPH, NONE]


def test_presets_count_an_eager_host_if_all_their_costs_are_calibrated() -> None:
    for name in PRESETS:
        cluster = get_cluster(name)
        calibrated = all(calibration_of(device.kind) is not None for device in cluster.devices)
        assert host_of(cluster) == (EAGER if calibrated else NONE), name


def test_what_has_no_host_is_refused_one() -> None:
    processors = replace(make_cluster(1), devices=(replace(make_cluster(1).devices[0], kind="cpu"),))
    for cluster in (processors, get_cluster("placeto-k80")):
        assert eager_issue_s(cluster) == 0
        assert host_of(with_host(cluster, "none")) == NONE
        for host in ("eager", "graph"):
            with pytest.raises(ClusterError, match=f"cluster '{cluster.name}': host '{host}' .* use 'none'"):
                with_host(cluster, host)
    with pytest.raises(ClusterError, match="host is 'fast'; use one of eager, graph, none"):
        with_host(get_cluster("4xv100"), "fast")
