"""Predicted against measured transfers, and their table."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from agent.experiments.fidelity import __main__ as fidelity
from agent.experiments.fidelity.links import LinkRow, compare_links, links_table
from envs.cluster.links import measured_links

LINK = measured_links()["v100-nvlink"]


@pytest.fixture
def times(tmp_path: Path) -> Path:
    path = tmp_path / "V100-16" / "fp16" / "p2p_intra_node.csv"
    path.parent.mkdir(parents=True)
    path.write_text("1,2\n10,20\n")
    return path


def test_transfers_are_predicted_by_the_link_and_by_its_datasheet(times: Path) -> None:
    first, second = compare_links([times])
    assert (first.link, first.n_bytes, first.held_out, second.held_out) == ("v100-nvlink", 2**20, False, True)
    assert first.measured_s == pytest.approx(1 / 10240)
    alpha_s = LINK.host_s + LINK.latency_s + LINK.n_half_bytes / LINK.bytes_per_s
    assert first.predicted_s == pytest.approx(alpha_s + 2**20 / LINK.bytes_per_s)
    assert first.datasheet_s == pytest.approx(10e-6 + 2**20 / 75e9)


def test_the_table_has_the_errors_of_held_out_sizes() -> None:
    rows = [
        LinkRow("a", 1, False, 9.0, 9.0, 1.0),
        *(LinkRow("a", 2, True, 1.0 + error, 0.5, 1.0) for error in (0.1, 0.2, 0.3)),
        LinkRow("b", 1, True, 2.0, float("nan"), 1.0),
    ]
    _, a, b = links_table(rows)
    assert a == ["a", "3", "20.0%", "28.0%", "50.0%", "50.0%"]
    assert b == ["b", "1", "100.0%", "100.0%", "-", "-"]


def test_the_command_writes_a_row_per_transfer(
    times: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(fidelity, "compare_steps", lambda folder, out: None)
    flags = ["--links", str(times), "--out", str(tmp_path / "out")]
    assert fidelity.main(flags) == 0
    assert "| v100-nvlink | 1 |" in capsys.readouterr().out
    with (tmp_path / "out" / "links.csv").open() as file:
        assert [row["n_bytes"] for row in csv.DictReader(file)] == [str(2**20), str(2**21)]
    times.write_text("1,2\n")
    assert fidelity.main(flags) == 2
    assert capsys.readouterr().err.count("\n") == 1
