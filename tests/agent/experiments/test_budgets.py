"""The table of `auto` by size, cluster and budget."""

from __future__ import annotations

import math
from pathlib import Path

from agent.experiments.equal_time.budgets import AUTO, CONTROL, BudgetRow, budget_tables
from agent.experiments.experiment import EXPERIMENTS
from agent.experiments.rows import write_rows
from agent.placing.request import placer_names


def rows_of(placer: str, n_ops: int, *steps_s: float, granularity: str = "op") -> list[BudgetRow]:
    return [
        BudgetRow(f"{n_ops}-{at}", "f", n_ops, "2xk80", granularity, 0.3, placer, 0, step_s, 0.3 + 0.001 * at)
        for at, step_s in enumerate(steps_s)
    ]


def test_the_reference_of_each_cell_is_its_best_placer(tmp_path: Path) -> None:
    rows = [
        *rows_of(AUTO, 100, 1.0, 2.0),
        *rows_of("refine", 100, 2.0, 2.0),
        *rows_of("annealing", 100, 1.0, 8.0),
        *rows_of("policy", 100, 1.0, 1.0),
        *rows_of(AUTO, 3_000, 3.0),
        *rows_of("refine", 3_000, 4.0),
        *rows_of("annealing", 3_000, 2.0),
        *rows_of("policy", 3_000, math.inf),
        *rows_of(CONTROL, 100, 2.0, 4.0),
        *rows_of(CONTROL, 3_000, 6.0),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    unlearned, all_placers, control, late = budget_tables(
        tmp_path / "rows.csv", (), ("refine", "annealing"), ("policy",)
    )
    assert [line.split(" | ")[-1] for line in unlearned.splitlines()[2:]] == [
        "0.707 (0.500 to 1.000) refine |",
        "1.500 (1.500 to 1.500) annealing |",
    ]
    assert "1.414 (1.000 to 2.000) policy" in all_placers
    assert "1.500 (1.500 to 1.500) annealing" in all_placers
    assert [line.split(" | ")[-1] for line in control.splitlines()[2:]] == [
        "0.500 (0.500 to 0.500) |",
        "0.500 (0.500 to 0.500) |",
    ]
    assert late.splitlines()[2:] == ["| 0.3 s | 1 ms |"]


def test_granularities_have_cells_of_their_own(tmp_path: Path) -> None:
    rows = [
        row
        for placer in (AUTO, "refine", CONTROL)
        for granularity in ("op", "module")
        for row in rows_of(
            placer, 100, 1.0 + (placer == AUTO and granularity == "op"), granularity=granularity
        )
    ]
    write_rows(tmp_path / "rows.csv", rows)
    table, *_ = budget_tables(tmp_path / "rows.csv", (), ("refine",), ())
    by_op, by_module = table.splitlines()[2:]
    assert "below 3,000 ops | 2.000" in by_op
    assert "below 3,000 ops, module | 1.000" in by_module


def test_its_placers_exist() -> None:
    fixed = EXPERIMENTS["budgets"].fixed
    assert {*fixed["unlearned"], *fixed["learned"], AUTO} <= set(placer_names())
