"""Links as they were measured, their file, and the presets that have them."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.links import Link, measured_links
from envs.cluster.presets import get_cluster

LINKS = measured_links()


def test_a_share_of_a_link_has_the_same_constants_in_seconds() -> None:
    one = Link(2e11, 4e-6, 1e6)
    half = one.scaled(0.5)
    assert (half.bytes_per_s, half.latency_s) == (1e11, 4e-6)
    assert half.n_half_bytes / half.bytes_per_s == one.n_half_bytes / one.bytes_per_s


def test_shipped_links_are_links() -> None:
    assert len(LINKS) == 9
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
