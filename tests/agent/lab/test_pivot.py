"""Rows, their pivot, and the statistics of its cells."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from agent.lab.__main__ import main
from agent.lab.pivot import (
    Across,
    ExperimentError,
    Pivot,
    Row,
    count,
    mean,
    only,
    over,
    read_table,
    write_rows,
)
from agent.lab.questions import EXPERIMENTS

ROWS: list[Row] = [
    {"kind": "a", "size": 1, "s": 1.0, "base": 2.0},
    {"kind": "a", "size": 1, "s": 4.0, "base": 2.0},
    {"kind": "b", "size": 1, "s": math.inf, "base": 1.0},
    {"kind": "b", "size": 2, "s": 3.0, "base": 2.0},
]


def test_a_pivot_has_a_line_for_each_value_and_cells_across_others() -> None:
    table = Pivot(
        {"kind": "kind", "even": lambda row: row["size"] % 2 == 0},
        [("n", count), Across(lambda row: f"size {row['size']}", mean("s", "base"))],
        where=lambda row: row["base"] > 0,
        total="all",
    )
    assert table.markdown(ROWS).splitlines() == [
        "| kind | even | n | size 1 | size 2 |",
        "| --- | --- | --- | --- | --- |",
        "| a | False | 2 | 1.000 |  |",
        "| b | False | 1 |  |  |",
        "| b | True | 1 |  | 1.500 |",
        "| all |  | 4 | 1.000 | 1.500 |",
    ]


@pytest.mark.parametrize(
    ("statistic", "cell"),
    [(count, "3"), (only(count, s=4.0), "1"), (mean("s"), "2.289"), (only(mean("s"), size=2), "3.000")],
)
def test_statistics_of_a_cell(statistic: Any, cell: str) -> None:
    assert statistic([row for row in ROWS if row["s"] < math.inf]) == cell


def steps(placer: str, *steps_s: float, cluster: str = "c", cpu_s: float = 1.0) -> list[Row]:
    row = {"placer": placer, "family": "f", "cluster": cluster, "granularity": "op", "seed": 0}
    row |= {"seconds": 1.0, "cpu_s": cpu_s}
    return [{**row, "graph": f"g{at}", "step_s": step_s} for at, step_s in enumerate(steps_s)]


def test_a_placer_is_compared_with_the_best_of_others() -> None:
    rows = [*steps("auto", 1.0, 2.0), *steps("refine", 2.0, 2.0), *steps("annealing", 1.0, 8.0)]
    assert over("auto", "refine", "annealing", "absent")(rows) == "0.707 (0.500 to 1.000) refine"
    assert over("auto", "annealing")(rows) == "0.500 (0.250 to 1.000)"
    assert over("auto", "absent")(rows) == over("absent", "auto")(rows) == over("auto", "refine")([]) == ""


def test_a_placer_that_does_not_keep_the_budget_everywhere_is_not_compared() -> None:
    rows = [*steps("auto", 1.0, 2.0), *steps("refine", 2.0, 2.0), *steps("rollout", 1.0, 1.0)]
    late = [*rows[:-1], *steps("rollout", 1.0, 1.0, cpu_s=1.2)[1:]]
    assert over("auto", "refine", "rollout")(rows).endswith("rollout")
    assert over("auto", "refine", "rollout")(late).endswith("refine")


def test_steps_are_compared_where_both_are_feasible() -> None:
    rows = [*steps("auto", 3.0, math.inf), *steps("refine", 2.0, 1.0)]
    assert over("auto", "refine")(rows) == "1.500 (1.500 to 1.500), 1 infeasible"
    assert over("auto", "refine")(rows[1:]) == "-, 1 infeasible"
    two_clusters = [*rows, *steps("auto", 1.0, cluster="d"), *steps("refine", 2.0, cluster="d")]
    assert over("auto", "refine")(two_clusters).startswith("0.866 (0.500 to 1.500)")


def test_rows_are_read_as_what_they_look_like(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": None, "c": 1, "d": 0.1, "e": True, "f": math.inf}] * 2
    for name in ("any.csv", "any.csv.gz"):
        write_rows(tmp_path / "new" / name, rows)
        assert read_table(tmp_path / "new" / name) == rows
    with pytest.raises(ExperimentError, match="there are no rows to write"):
        write_rows(tmp_path / "none.csv", [])
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_rows_of_another_table_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / EXPERIMENTS["budgets"].rows, ROWS)
    assert main(["budgets", "--only", "tables", "--out", str(tmp_path)]) == 2
    assert "the rows have no column 'seconds'" in capsys.readouterr().err
