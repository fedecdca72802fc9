"""Fitting links to measured transfers."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from agent.calibration.__main__ import main
from agent.calibration.links_fit import fit_line, fit_links
from agent.calibration.links_times import LinkTimes
from agent.calibration.op_tables import MeasuredOpsError
from envs.cluster.links import read_links

SIZES = 2.0 ** np.arange(11, 29)


def times(name: str, alpha_s: float, bandwidth: float, noise: float = 0.0) -> LinkTimes:
    """Times of a straight line, beginning with a message that takes half of alpha."""
    errors = np.exp(np.random.default_rng(0).normal(0, noise, len(SIZES)))
    seconds = (alpha_s + SIZES / bandwidth) * errors
    seconds[0] = alpha_s / 2
    return LinkTimes(name, SIZES, seconds)


@pytest.mark.parametrize("alpha_s", [2e-6, 5e-5])
@pytest.mark.parametrize("bandwidth", [4e9, 3e11])
def test_a_line_is_found_again_from_relative_errors(alpha_s: float, bandwidth: float) -> None:
    rng = np.random.default_rng(1)
    seconds = (alpha_s + SIZES / bandwidth) * np.exp(rng.normal(0, 0.01, len(SIZES)))
    seconds[5] *= 3  # an outlier
    found = fit_line(SIZES, seconds)
    assert found == pytest.approx((alpha_s, bandwidth), rel=0.03)


def test_a_link_timed_without_the_host_is_split_at_its_smallest_message() -> None:
    link = fit_links([times("a100-nvlink", 8e-6, 2e11, 0.001)])["a100-nvlink"]
    assert link.bytes_per_s == pytest.approx(2e11, rel=0.01)
    assert link.latency_s == pytest.approx(4e-6)
    assert link.n_half_bytes / link.bytes_per_s == pytest.approx(4e-6, rel=0.05)
    assert link.host_s == 0
    assert (link.rows, link.held_out_rows) == (9, 9)
    assert 0 < link.median < 0.02


def test_a_link_timed_by_the_host_has_the_constants_of_another_and_leaves_the_rest_to_the_host() -> None:
    links = fit_links([times("a100-nvlink", 8e-6, 2e11), times("v100-nvlink", 5e-5, 5e10)])
    own, other = links["a100-nvlink"], links["v100-nvlink"]
    assert other.latency_s == own.latency_s
    assert other.n_half_bytes / other.bytes_per_s == pytest.approx(
        own.n_half_bytes / own.bytes_per_s, rel=1e-3
    )
    alpha_s = other.latency_s + other.n_half_bytes / other.bytes_per_s + other.host_s
    assert alpha_s == pytest.approx(5e-5, rel=0.03)
    assert other.measured_s(np.array([1e9]))[0] == pytest.approx(5e-5 + 0.02, rel=0.01)


def test_a_faster_host_than_the_other_link_leaves_nothing_to_the_host() -> None:
    links = fit_links([times("a100-nvlink", 8e-5, 2e11), times("v100-nvlink", 1e-5, 5e10)])
    assert links["v100-nvlink"].host_s == 0


def test_a_link_across_nodes_has_all_of_alpha_as_latency() -> None:
    n_bytes = SIZES[8:]
    link = fit_links([LinkTimes("a100-nodes", n_bytes, 4e-4 + n_bytes / 2e9)])["a100-nodes"]
    assert link.latency_s == pytest.approx(4e-4, rel=0.01)
    assert link.n_half_bytes == 0
    assert math.isnan(link.datasheet_bytes_per_s)


def test_errors_are_those_of_sizes_that_nothing_was_fitted_to() -> None:
    table = times("a100-nvlink", 8e-6, 2e11)
    table.seconds[table.held_out] /= 1.25
    link = fit_links([table])["a100-nvlink"]
    assert link.bytes_per_s == pytest.approx(2e11, rel=0.05)
    assert link.median == pytest.approx(0.25, abs=0.02)


def test_a_link_without_the_times_that_it_needs_is_one_line() -> None:
    with pytest.raises(MeasuredOpsError, match="v100-nvlink: takes its latency from 'a100-nvlink', of which"):
        fit_links([times("v100-nvlink", 5e-5, 5e10)])
    with pytest.raises(
        MeasuredOpsError, match="a40-pcie4: was measured at 2 sizes; give files of at least 4"
    ):
        fit_links([LinkTimes("a40-pcie4", np.repeat(SIZES[:2], 3), np.ones(6))])


def test_the_command_writes_links_and_prints_their_errors(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = [f"{1e3 * (1e-5 + size / 1e11)},{int(size)},2" for size in SIZES]
    source, out = tmp_path / "a100_x.csv", tmp_path / "new" / "links.json"
    source.write_text("\n".join(["time_stats.send_recv.median,size,devices_per_node", *rows]))
    assert main(["links", "--times", str(source), "--out", str(out)]) == 0
    assert "a100-nvlink" in capsys.readouterr().out
    assert read_links(out)["a100-nvlink"].bytes_per_s == pytest.approx(1e11, rel=0.01)


def test_a_malformed_file_is_one_line_and_writes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source, out = tmp_path / "p2p_intra_node.csv", tmp_path / "links.json"
    source.write_text("1,2\n")
    assert main(["links", "--times", str(source), "--out", str(out)]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()
