"""Simulated pipelines against steps that others measured, on a few of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.lab.command import main
from agent.lab.pipeline_published import DATA, PublishedRow, sailor_seconds, step_seconds
from agent.lab.rows import read_rows, read_table
from envs.cluster.links import Link
from envs.cluster.presets import calibrated


def test_a_pipeline_of_equal_layers_takes_its_fill_and_its_microbatches() -> None:
    cluster = calibrated("two", ("a100-sxm4-40gb",) * 2, Link(1e12, 0.0, 0.0), sharing="pair")
    seconds = np.tile([1.0, 2.0, 0.5], (2, 4, 1))
    found = step_seconds(cluster, seconds, np.zeros(4), 0.0, (2, 2), 5)
    assert found == pytest.approx((5 + 1) * 2 * (1 + 2))


def test_copies_that_block_take_the_time_of_their_nodes() -> None:
    (plan,) = [row for row in read_table(DATA / "sailor_plans.csv") if row["case"] == "N2_D1"]
    overlap, block = (sailor_seconds(blocks, plan) for blocks in (False, True))
    transfers = 2 * plan["microbatches"] * 4 * 2 * 2048 * 1024 / 0.115e9
    assert block - overlap == pytest.approx(transfers, rel=0.02)


def test_a_quick_run_makes_rows_of_all_sources(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline_published", "--every", "40", "--out", str(tmp_path)]) == 0
    rows = read_rows(tmp_path / "pipeline_published.csv.gz", PublishedRow)
    assert {(row.source, row.costs) for row in rows} >= {("vtrain", "fitted"), ("sailor", "copies block")}
    (fitted_to,) = [row for row in rows if (row.costs, row.stages, row.replicas) == ("fitted", 1, 2)]
    assert fitted_to.simulated_s == pytest.approx(fitted_to.measured_s, rel=0.01)
    assert "Kendall" in capsys.readouterr().out
