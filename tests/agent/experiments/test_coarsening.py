"""The experiment on coarse graphs: its rows are those of its table, and what an unknown family is told."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.experiments.coarsening import PLACED_BY, CoarseningRow
from agent.experiments.command import main
from agent.experiments.rows import read_rows


def test_rows_hold_the_numbers_of_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--families", "gpt", "--groups", "700", "100000", "--out", str(tmp_path)]
    assert main(["coarsening", *flags]) == 0
    found, differ = capsys.readouterr().out.split("\n\n")[1:]
    rows = read_rows(tmp_path / "coarsening.csv", CoarseningRow)
    assert [row.placer for row in rows] == [*PLACED_BY, *PLACED_BY]
    random, heft, m_etf, *none = rows
    assert random.found_over_op_by_op is None
    assert heft.graphs > 0
    assert 0.5 < heft.coarse_over_fine < 2.0
    assert {(row.graphs, row.coarse_over_fine) for row in none} == {(0, None)}
    cells = [f"{row.found_over_op_by_op:.3f}" for row in (heft, m_etf)]
    assert found.splitlines()[-1] == f"| gpt | {cells[0]} |  | {cells[1]} |  |"
    assert f"| gpt | {heft.coarse_over_fine:.3f} |  |" in differ


def test_an_unknown_family_is_refused_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["coarsening", "--families", "lstm", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("agent.experiments: unknown family 'lstm'")
