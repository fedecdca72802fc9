"""Links as they were measured, their file, and the presets that have them."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from envs.cluster.cluster import ClusterError
from envs.cluster.links import Link, links_from_json, measured_links
from envs.cluster.presets import get_cluster
from graphs.system.errors import InputError

LINKS = measured_links()
ONE = Link("here", "", 3e11, 2e11, 4e-6, 1e6, 5e-5, 10, 9, 0.03, 0.1)


def record(**changes: Any) -> dict[str, Any]:
    one = asdict(ONE) | changes
    return {"format": "placewalk.links/1", "licence": "MIT", "links": {"one": one}}


def test_a_share_of_a_link_has_the_same_constants_in_seconds() -> None:
    half = ONE.scaled(0.5)
    assert (half.bytes_per_s, half.datasheet_bytes_per_s, half.latency_s) == (1e11, 1.5e11, 4e-6)
    assert half.n_half_bytes / half.bytes_per_s == ONE.n_half_bytes / ONE.bytes_per_s


def test_links_are_read_and_an_unknown_bandwidth_is_null() -> None:
    assert links_from_json(record(), "here") == {"one": ONE}
    unknown = links_from_json(record(datasheet_bytes_per_s=None), "here")["one"]
    assert np.isnan(unknown.datasheet_bytes_per_s)


def test_shipped_links_say_what_they_are() -> None:
    assert len(LINKS) == 9
    for link in LINKS.values():
        assert link.source
        assert min(link.rows, link.held_out_rows) >= 5
        assert link.median < 0.1
        assert link.alike == "" or LINKS[link.alike].latency_s == link.latency_s
        assert (link.host_s > 0) == bool(link.alike)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ([], "here: is an array; expected an object"),
        (record() | {"format": "placewalk.links/2"}, "here: format is 'placewalk.links/2'; expected"),
        (record() | {"links": []}, "here: links: is an array; expected an object"),
        ({"format": "placewalk.links/1"}, "here: keys 'licence', 'links' are missing"),
        (record() | {"links": {"one": 3}}, "here: one: is a number; expected an object"),
        (record(speed=1), "here: one: unknown key 'speed'"),
        (record(bytes_per_s=None), "here: one: bytes_per_s: is null; expected a number"),
        (record(bytes_per_s=0), "here: one: bytes_per_s is 0; expected a bandwidth above 0"),
        (record(datasheet_bytes_per_s=-1), "here: one: datasheet_bytes_per_s is -1; expected"),
        (record(latency_s=-1), "here: one: latency_s is -1; expected"),
        (record(n_half_bytes=-1), "here: one: n_half_bytes is -1; expected"),
        (record(host_s=1e10), r"here: one: host_s is 1e\+10; expected"),
        (record(rows=1.5), "here: one: rows: is 1.5; expected an integer"),
        (record(source=7), "here: one: source: is a number; expected a string"),
    ],
)
def test_bad_links_are_one_line(value: object, message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        links_from_json(value, "here")
    assert "\n" not in str(caught.value)


def test_a_link_checks_itself() -> None:
    with pytest.raises(ClusterError, match="bytes_per_s is 0"):
        replace(ONE, bytes_per_s=0.0)


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
    assert cluster.issue_s == 0


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
