"""The table of `auto` by size, cluster and budget."""

from __future__ import annotations

import math
from pathlib import Path

from agent.evaluation.spec import placer_names
from agent.experiments.equal_time.budgets import AUTO, BudgetRow, budget_tables
from agent.experiments.experiment import EXPERIMENTS
from agent.experiments.rows import write_rows


def rows_of(placer: str, n_ops: int, *steps_s: float) -> list[BudgetRow]:
    return [
        BudgetRow(f"{n_ops}-{at}", "f", n_ops, "2xk80", 0.3, placer, 0, step_s, 0.3 + 0.001 * at)
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
    ]
    write_rows(tmp_path / "rows.csv", rows)
    unlearned, all_placers, late = budget_tables(
        tmp_path / "rows.csv", (), ("refine", "annealing"), ("policy",)
    )
    assert [line.split(" | ")[-1] for line in unlearned.splitlines()[2:]] == [
        "0.707 (0.500 to 1.000) refine |",
        "1.500 (1.500 to 1.500) annealing |",
    ]
    assert "1.414 (1.000 to 2.000) policy" in all_placers
    assert "1.500 (1.500 to 1.500) annealing" in all_placers
    assert late.splitlines()[2:] == ["| 0.3 s | 1 ms |"]


def test_its_placers_exist() -> None:
    fixed = EXPERIMENTS["budgets"].fixed
    assert {*fixed["unlearned"], *fixed["learned"], AUTO} <= set(placer_names())
