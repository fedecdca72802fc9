"""Clusters: rules, files and presets."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.files import cluster_from_json, cluster_to_json, read_cluster, write_cluster
from envs.cluster.presets import PRESETS, get_cluster, preset
from graphs.system.json_files import FileFormatError, write_json_atomic

DEVICE = {
    "name": "gpu0",
    "kind": "k80",
    "memory_bytes": 1.2e10,
    "flops_per_s": 2.8e12,
    "bytes_per_s": 2.4e11,
    "launch_s": 6e-6,
}
LINKS = {
    "bytes_per_s": 7.6e9,
    "latency_s": [[0, 1e-6], [2e-6, 0]],
    "sharing": "pair",
    "transfer_per": "tensor",
}


def record(**changes: Any) -> dict[str, Any]:
    """A conforming cluster of two devices, with some top-level keys changed."""
    base = {
        "format": "placewalk.cluster/1",
        "name": "c",
        "schedule": "fifo",
        "devices": [DEVICE, DEVICE | {"name": "gpu1"}],
        "links": LINKS,
        "op_gap_s": 1e-6,
        "transfer_gap_s": 2e-6,
    }
    return base | changes


def with_device(**changes: Any) -> dict[str, Any]:
    return record(devices=[DEVICE, DEVICE | {"name": "gpu1"} | changes])


def with_links(**changes: Any) -> dict[str, Any]:
    return record(links=LINKS | changes)


def test_every_field_arrives() -> None:
    cluster = cluster_from_json(record(), "here")
    assert (cluster.name, cluster.schedule, cluster.sharing) == ("c", "fifo", "pair")
    assert (cluster.transfer_per, cluster.op_gap_s, cluster.transfer_gap_s) == ("tensor", 1e-6, 2e-6)
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1"]
    assert cluster.devices[1].kind == "k80"
    np.testing.assert_array_equal(cluster.memory_bytes, [1.2e10, 1.2e10])
    np.testing.assert_array_equal(cluster.bytes_per_s, np.full((2, 2), 7.6e9))
    np.testing.assert_array_equal(cluster.latency_s, [[0, 1e-6], [2e-6, 0]])


def test_rules_have_defaults() -> None:
    links = {"bytes_per_s": 1, "latency_s": 0}
    cluster = cluster_from_json(
        {"format": "placewalk.cluster/1", "name": "c", "devices": [DEVICE], "links": links}, "here"
    )
    assert (cluster.schedule, cluster.sharing, cluster.transfer_per) == ("program", "egress", "destination")
    assert (cluster.op_gap_s, cluster.transfer_gap_s) == (0, 0)
    assert (cluster.issue_s, cluster.copies) == (0, "stream")
    assert cluster.n_half_matrix.tolist() == [[0]]


def test_the_rules_of_the_host_thread_arrive() -> None:
    links = {"bytes_per_s": 1e9, "latency_s": 0, "n_half_bytes": [[0, 1e4], [2e4, 0]]}
    rules = {"schedule": "program", "issue_s": 5e-6, "issue_per": "step", "copies": "eager", "links": links}
    cluster = cluster_from_json(with_device(overlap_slowdown=2.5) | rules, "here")
    assert (cluster.issue_s, cluster.issue_per, cluster.copies) == (5e-6, "step", "eager")
    assert cluster.n_half_matrix.tolist() == [[0, 1e4], [2e4, 0]]
    assert [device.overlap_slowdown for device in cluster.devices] == [1.0, 2.5]
    written = cluster_to_json(cluster)
    assert {key: written[key] for key in ("issue_s", "issue_per", "copies")}.items() <= rules.items()
    assert written["links"]["n_half_bytes"] == [[0, 1e4], [2e4, 0]]
    assert [device.get("overlap_slowdown") for device in written["devices"]] == [None, 2.5]
    assert cluster_to_json(cluster_from_json(written, "again")) == written


def test_files_of_before_are_written_as_before() -> None:
    written = cluster_to_json(cluster_from_json(record(), "here"))
    assert "issue_per" not in written
    assert "overlap_slowdown" not in written["devices"][0]


@pytest.mark.parametrize("cluster", [build() for build in PRESETS.values()], ids=PRESETS.keys())
def test_written_clusters_are_read_back(tmp_path: Path, cluster: Cluster) -> None:
    path = tmp_path / "cluster.json"
    write_cluster(path, cluster)
    assert cluster_to_json(read_cluster(path)) == cluster_to_json(cluster)
    assert get_cluster(str(path)).devices == cluster.devices


BAD_RECORDS = {
    "not an object": ([], "is an array; expected an object"),
    "format": (record(format="placewalk.opgraph/1"), "format is 'placewalk.opgraph/1'; expected"),
    "unknown key": (record(gap=0), "unknown key 'gap'; known keys are copies, devices"),
    "missing key": ({"format": "placewalk.cluster/1", "name": "c", "devices": []}, "key 'links' is missing"),
    "no devices": (record(devices=[]), "has 0 devices; give 1 to 1024"),
    "too many devices": (record(devices=[DEVICE] * 1025), "has 1025 devices; give 1 to 1024"),
    "device names": (with_device(name="gpu0"), "device 1 \\('gpu0'\\) has the name of device 0"),
    "unknown device key": (with_device(cores=4), "device 1: unknown key 'cores'"),
    "missing device key": (record(devices=[{"name": "gpu0"}]), "device 0: keys 'bytes_per_s', 'flops_per_s'"),
    "no speed": (
        with_device(flops_per_s=0),
        "device 1 .*flops_per_s is 0.0; use a number from 0.001 to 1e\\+24",
    ),
    "speed is a string": (with_device(bytes_per_s="fast"), "device 1: bytes_per_s: is a string"),
    "speed is huge": (with_device(bytes_per_s=10**400), "device 1: bytes_per_s: is too large"),
    "negative launch": (with_device(launch_s=-1e-6), "launch_s is -1e-06; use 0, or from 1e-15 to 1e\\+09 s"),
    "too much memory": (with_device(memory_bytes=1e22), "memory_bytes is 1e\\+22; use a number from 1 to"),
    "hardly any memory": (with_device(memory_bytes=0.5), "memory_bytes is 0.5; use a number from 1 to"),
    "too much speed": (with_device(flops_per_s=1e308), "flops_per_s is 1e\\+308; use a number from"),
    "endless launch": (with_device(launch_s=1e308), "launch_s is 1e\\+308; use 0, or from"),
    "endless gap": (record(transfer_gap_s=1e308), "transfer_gap_s is 1e\\+308; use 0, or from"),
    "hardly any gap": (record(op_gap_s=5e-324), "op_gap_s is 5e-324; use 0, or from"),
    "endless latency": (with_links(latency_s=1e308), "to 'gpu1': latency_s is 1e\\+308; use 0, or from"),
    "hardly any bandwidth": (with_links(bytes_per_s=5e-324), "bytes_per_s is 5e-324; use a number from"),
    "schedule": (record(schedule="lifo"), "schedule is 'lifo'; use one of program, fifo"),
    "sharing": (with_links(sharing="bus"), "sharing is 'bus'; use one of egress, pair, none"),
    "transfer_per": (with_links(transfer_per=1), "transfer_per: is a number; expected a string"),
    "issue under fifo": (
        record(issue_s=1e-6),
        "issue_s is 1e-06, but under schedule 'fifo' no host .* use 0",
    ),
    "graph under fifo": (record(issue_per="step"), "issue_per is 'step', but under schedule 'fifo' .* 'op'"),
    "issue_per": (record(issue_per="graph"), "issue_per is 'graph'; use one of op, step"),
    "slowed under fifo": (
        with_device(overlap_slowdown=1.5),
        "device 1 .* overlap_slowdown is 1.5, but under schedule 'fifo' copies slow no ops; use 1, or",
    ),
    "faster beside copies": (
        with_device(overlap_slowdown=0.9),
        "device 1 .* overlap_slowdown is 0.9; use a number from 1 to 1000",
    ),
    "endless beside copies": (with_device(overlap_slowdown=1e4), "overlap_slowdown is 10000; use a number"),
    "eager under fifo": (record(copies="eager"), "copies is 'eager', but under schedule 'fifo' .* 'stream'"),
    "eager to all": (
        record(schedule="program", copies="eager"),
        "copies is 'eager' and transfer_per 'tensor', but an eager copy has one destination",
    ),
    "copies": (record(copies="lazy"), "copies is 'lazy'; use one of stream, eager"),
    "negative issue": (record(issue_s=-1), "issue_s is -1.0; use 0, or from 1e-15 to 1e\\+09 seconds"),
    "endless n_half": (with_links(n_half_bytes=1e20), "n_half_bytes is 1e\\+20; use 0, or a size"),
    "hardly any n_half": (with_links(n_half_bytes=1e-9), "n_half_bytes is 1e-09; use 0, or a size"),
    "ragged n_half": (with_links(n_half_bytes=[[0, 1]]), "n_half_bytes: expected one number, or 2 rows of 2"),
    "no bandwidth": (with_links(bytes_per_s=0), "link from 'gpu0' to 'gpu1': bytes_per_s is 0.0"),
    "negative latency": (
        with_links(latency_s=[[0, 0], [-1, 0]]),
        "link from 'gpu1' to 'gpu0': latency_s is -1.0",
    ),
    "ragged matrix": (with_links(latency_s=[[0, 0], [0]]), "latency_s: expected one number, or 2 rows of 2"),
    "matrix of strings": (with_links(latency_s=[[0, 0], ["0", 0]]), "row 1, column 0: is a string"),
    "links": (record(links=[]), "links: is an array; expected an object"),
}


@pytest.mark.parametrize(("value", "message"), BAD_RECORDS.values(), ids=BAD_RECORDS.keys())
def test_what_breaks_a_rule_is_refused_in_one_line(value: object, message: str) -> None:
    with pytest.raises((FileFormatError, ClusterError), match=f"^here: .*{message}") as caught:
        cluster_from_json(value, "here")
    assert "\n" not in str(caught.value)


def test_rules_hold_without_a_file() -> None:
    cluster = cluster_from_json(record(), "here")
    with pytest.raises(ClusterError, match=r"bytes_per_s of the links has shape \(3, 3\); use \(2, 2\)"):
        replace(cluster, bytes_per_s=np.ones((3, 3)))
    with pytest.raises(
        ClusterError, match=r"n_half_bytes of the links has shape \(3, 3\); use one number, or"
    ):
        replace(cluster, n_half_bytes=np.ones((3, 3)))
    with pytest.raises(ClusterError, match="latency_s is nan"):
        replace(cluster, latency_s=np.full((2, 2), np.nan))


@pytest.mark.parametrize("name", ["", "a\nb", "\ud800", "\x1b[2J"])
def test_names_can_be_written_and_read_back(name: str) -> None:
    cluster = cluster_from_json(record(), "here")
    for changes in (
        {"name": name},
        {"devices": (replace(cluster.devices[0], name=name), cluster.devices[1])},
        {"devices": (replace(cluster.devices[0], kind=name), cluster.devices[1])},
    ):
        with pytest.raises(ClusterError, match="give a name of printable characters"):
            replace(cluster, **changes)


def test_the_diagonal_is_free_to_be_any_number() -> None:
    cluster = cluster_from_json(with_links(bytes_per_s=[[0, 1], [1, 0]]), "here")
    assert cluster.bytes_per_s[0, 0] == 0
    with pytest.raises(ClusterError, match="bytes_per_s is nan"):
        replace(cluster, bytes_per_s=np.array([[np.nan, 1], [1, 1]]))


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
    ],
)
def test_presets_are_named_and_sized(name: str, kinds: list[str]) -> None:
    cluster = get_cluster(name)
    assert cluster.name == name
    assert [device.kind for device in cluster.devices] == kinds


def test_a_preset_is_registered_once() -> None:
    with pytest.raises(ClusterError, match="cluster '4xv100' is registered twice"):
        preset("4xv100")(PRESETS["4xv100"])


def test_gpu_presets_schedule_in_program_order() -> None:
    schedules = {name: build().schedule for name, build in PRESETS.items()}
    assert schedules.pop("placeto-k80") == "fifo"
    assert set(schedules.values()) == {"program"}


def test_placeto_is_the_published_simulator() -> None:
    cluster = get_cluster("placeto-k80:3")
    assert (cluster.sharing, cluster.transfer_per) == ("egress", "tensor")
    assert (cluster.op_gap_s, cluster.transfer_gap_s) == (5.7e-6, 25e-6)
    assert (cluster.bytes_per_s == 7.6e9).all()
    assert (cluster.latency_s == 0).all()


def test_a_count_takes_the_first_devices_of_a_preset() -> None:
    whole, part = get_cluster("2x4xa100"), get_cluster("2x4xa100:5")
    assert (part.name, part.n_devices) == ("2x4xa100:5", 5)
    assert part.devices == whole.devices[:5]
    assert (part.bytes_per_s == whole.bytes_per_s[:5, :5]).all()
    assert (part.latency_s == whole.latency_s[:5, :5]).all()
    for name in PRESETS:
        assert get_cluster(f"{name}:1").n_half_matrix.shape == (1, 1)


def test_two_nodes_are_slower_between_than_within() -> None:
    cluster = get_cluster("2x4xa100")
    assert cluster.bytes_per_s[0, 3] > cluster.bytes_per_s[0, 4] == cluster.bytes_per_s[7, 3]
    assert cluster.latency_s[0, 3] < cluster.latency_s[0, 4]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            "5xv100",
            r"unknown cluster '5xv100': there is no kind 'v100' .did you mean v100-pcie or .*; write Nx.*"
            r"NAME:N .*, or the path .* `evaluate.py --list-clusters` lists kinds and presets",
        ),
        ("", "unknown cluster ''"),
        ("4xv100:5", "write '4xv100:N' with N devices, 1 to 4"),
        ("4xv100:0", "write '4xv100:N'"),
        ("placeto-k80:", "write 'placeto-k80:N' with N devices, 1 to 1024"),
        ("placeto-k80:0", "write 'placeto-k80:N'"),
        ("placeto-k80:-1", "write 'placeto-k80:N'"),
        ("placeto-k80:²", "write 'placeto-k80:N'"),
        ("placeto-k80:99999999", "write 'placeto-k80:N'"),
    ],
)
def test_an_unknown_cluster_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ClusterError, match=message):
        get_cluster(spec)


def test_an_absent_or_foreign_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(FileFormatError, match=r"absent\.json: cannot be read"):
        get_cluster(str(tmp_path / "absent.json"))
    write_json_atomic(tmp_path / "foreign.json", {"devices": 4})
    message = (
        r"foreign\.json: keys 'format', 'links', 'name' are missing; format must be 'placewalk\.cluster/1'"
    )
    with pytest.raises(FileFormatError, match=message):
        get_cluster(str(tmp_path / "foreign.json"))
