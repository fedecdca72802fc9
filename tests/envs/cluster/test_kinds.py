"""Device kinds and their peaks, measured links, and the presets that have them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, ClusterError
from envs.cluster.files import cluster_from_json, cluster_to_json
from envs.cluster.host import EAGER_ISSUE_S
from envs.cluster.kinds import CONTEXT_BYTES, KINDS, MIB, Kind, Link, measured_links
from envs.cluster.presets import get_cluster
from graphs.system.json_files import FileFormatError

LINKS = measured_links()


def alone(**changes: object) -> Cluster:
    device = replace(KINDS["t4"].device(), **changes)  # type: ignore[arg-type]
    return Cluster("c", (device,), np.ones((1, 1)), np.zeros((1, 1)))


def test_stand_ins_of_peaks() -> None:
    v100, a100 = KINDS["v100-sxm2-16gb"].device(), KINDS["a100-sxm4-40gb"].device()
    assert v100.peak("tf32") == v100.peak("bf16") == v100.peak("fp32") == v100.flops_per_s == 15.7e12
    assert (a100.peak("tf32"), a100.peak("bf16"), a100.peak("fp16")) == (156e12, 312e12, 312e12)
    assert a100.peak("") == a100.peak("int") == a100.flops_per_s == 19.5e12
    assert replace(a100, peaks={}).peak("fp16") == 19.5e12
    assert (v100.peak("fp8"), a100.peak("fp8"), a100.peak("int8")) == (125e12, 312e12, 624e12)
    assert replace(a100, peaks={"fp32": 1e12}).peak("fp8") == 1e12
    assert KINDS["h100-sxm5-80gb"].device().peak("fp8") == 2 * 989.4e12


def test_peaks_are_written_and_read_back() -> None:
    record = cluster_to_json(alone())
    assert record["devices"][0]["peaks"]["fp16"] == 65e12
    assert cluster_from_json(record, "here").devices == alone().devices
    assert "peaks" not in cluster_to_json(alone(peaks={}))["devices"][0]


@pytest.mark.parametrize(
    ("peaks", "error", "message"),
    [
        ([], FileFormatError, "device 0: peaks: is an array; expected an object"),
        ({"fp6": 1e12}, FileFormatError, "device 0: peaks: unknown key 'fp6'; known keys are bf16, fp16"),
        ({"fp16": "fast"}, FileFormatError, "device 0: peaks: fp16: is a string; expected a number"),
        ({"fp16": 0}, ClusterError, "peaks of fp16 is 0.0; use a number from 0.001"),
    ],
    ids=["array", "dtype", "string", "zero"],
)
def test_bad_peaks_are_refused(peaks: object, error: type[Exception], message: str) -> None:
    record = cluster_to_json(alone())
    record["devices"][0]["peaks"] = peaks
    with pytest.raises(error, match=message):
        cluster_from_json(record, "here")


@pytest.mark.parametrize("name", ["4xv100-sxm2", "4xa100-pcie", "8xa100-sxm4", "4xh100-sxm5"])
def test_presets_of_kinds_are_calibrated(name: str) -> None:
    kinds = {device.kind for device in get_cluster(name).devices}
    assert len(kinds) == 1
    assert kinds <= set(KINDS)


def test_presets_of_unequal_devices() -> None:
    assert [d.kind for d in get_cluster("a100+v100").devices] == ["a100-pcie-40gb", "v100-pcie-32gb"]
    cluster = get_cluster("3090+2080+titan")
    assert [device.kind for device in cluster.devices] == ["rtx3090", "rtx2080", "titan-rtx"]
    assert [device.name for device in cluster.devices] == ["gpu0", "gpu1", "gpu2"]


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_tensors_cannot_have_the_memory_of_the_context_nor_what_is_fragmented(kind: Kind) -> None:
    left = kind.memory_bytes - CONTEXT_BYTES
    assert kind.device().memory_bytes == pytest.approx(0.95 * left)
    assert kind.memory_bytes > 7600 * MIB


def test_a_device_without_context_has_all_its_memory() -> None:
    kind = replace(KINDS["t4"], context_bytes=0.0, fragmented=0.0)
    assert kind.device().memory_bytes == kind.memory_bytes == 15109 * MIB


def test_a_device_refuses_an_unknown_dtype() -> None:
    with pytest.raises(ClusterError, match="peaks has 'fp6'; use dtypes of fp64, fp32"):
        alone(peaks={"fp6": 1e12})


def test_a_share_of_a_link_has_the_same_constants_in_seconds() -> None:
    one = Link(2e11, 4e-6, 1e6)
    half = one.scaled(0.5)
    assert (half.bytes_per_s, half.latency_s) == (1e11, 4e-6)
    assert half.n_half_bytes / half.bytes_per_s == one.n_half_bytes / one.bytes_per_s


def test_shipped_links_are_links() -> None:
    assert len(LINKS) == 9 + 6 * 3
    for link in LINKS.values():
        assert link.bytes_per_s > 1e9
        assert 0 <= link.latency_s < 1e-3
        assert link.n_half_bytes >= 0


@pytest.mark.parametrize(
    ("preset", "name", "share"),
    [
        ("4xv100-sxm2", "v100-nvlink", 2 / 3),
        ("4xa100-pcie", "pcie3", 2.0),
        ("8xa100-sxm4", "a100-nvswitch", 1.0),
        ("4xh100-sxm5", "a100-nvswitch", 1.5),
        ("a100+v100", "pcie3", 1.0),
        ("3090+2080+titan", "pcie3", 1.0),
    ],
)
def test_calibrated_presets_have_the_numbers_of_the_file(preset: str, name: str, share: float) -> None:
    cluster, link = get_cluster(preset), LINKS[name]
    np.testing.assert_allclose(cluster.bytes_per_s, share * link.bytes_per_s)
    np.testing.assert_array_equal(cluster.latency_s, link.latency_s)
    np.testing.assert_allclose(cluster.n_half_matrix, share * link.n_half_bytes)
    assert (cluster.issue_s, cluster.issue_per) == (EAGER_ISSUE_S, "op")


@pytest.mark.parametrize(
    ("preset", "gb_per_s"),
    [
        ("4xv100-sxm2", 50),
        ("4xa100-pcie", 31.5),
        ("8xa100-sxm4", 300),
        ("4xh100-sxm5", 450),
        ("a100+v100", 15.75),
    ],
)
def test_no_calibrated_link_is_faster_than_its_datasheet(preset: str, gb_per_s: float) -> None:
    assert 0.6e9 * gb_per_s < get_cluster(preset).bytes_per_s.max() < 1e9 * gb_per_s


@pytest.mark.parametrize("preset", ["2xk80", "4xv100", "8xa100", "4xh100", "gpu+cpu"])
def test_other_presets_keep_their_links(preset: str) -> None:
    cluster = get_cluster(preset)
    np.testing.assert_array_equal(cluster.latency_s, 10e-6)
    assert cluster.n_half_bytes == 0
