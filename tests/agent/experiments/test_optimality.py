"""Placers against known optima: rows and tables."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path

from agent.experiments.optimality import (
    LEVEL,
    OptimalityRow,
    Setting,
    closed_table,
    is_hard,
    is_trivial,
    table,
)

RESULTS = Path("agent") / "experiments" / "results"
SETTING = Setting("4xv100:2", 16)


def make_row(**changes: object) -> OptimalityRow:
    row = OptimalityRow(
        graph="a-in-16",
        family="f",
        ops=16,
        cluster="4xv100:2",
        granularity="op",
        n_units=16,
        placements=32768,
        optimum_s=1.0,
        proof_cpu_s=2.0,
        single=1.5,
        bound=0.9,
        budget=300,
        placer="heft",
        found=1.0,
        evaluations=5,
        cpu_s=0.1,
    )
    return replace(row, **changes)


def test_a_table_counts_optima_where_one_device_is_not_enough() -> None:
    row = make_row()
    rows = [
        row,
        replace(row, graph="b-in-16", found=1.21),
        replace(row, graph="c-in-16", single=1.0, found=2.0),
    ]
    assert [is_trivial(each) for each in rows] == [False, False, True]
    assert "| 5 | heft | 2 | 50% | 1.1000 | 1.210 | 0.100 |" in table(rows)
    closed = closed_table(rows, {SETTING: 4})
    assert "| 4xv100:2 | group, 16 | 16 | 16 | 4 | 3 | 1 | 0.900 | 0.900 |" in closed


def test_one_device_that_is_faster_than_the_optimum_does_not_fit_and_is_no_optimum() -> None:
    assert not is_trivial(make_row(single=0.8))


def test_budgets_that_try_many_of_the_placements_are_left_out() -> None:
    few = make_row(placer="refine", placements=2795, evaluations=300)
    assert is_hard(replace(few, budget=279))
    assert not is_hard(few)
    many = replace(few, placements=32768)
    rows = [
        replace(each, budget=budget, evaluations=budget) for each in (few, many) for budget in (300, 10_000)
    ]
    assert [line.split(" | ")[:3] for line in table(rows).splitlines()[2:]] == [["| 300", "refine", "1"]]


def test_no_placer_beats_an_optimum_and_no_bound_is_above_one() -> None:
    """Of the committed rows."""
    with (RESULTS / "optimality.csv").open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert min(float(row["found"]) for row in rows) >= 1 - LEVEL
    assert max(float(row["bound"]) for row in rows) <= 1 + LEVEL
