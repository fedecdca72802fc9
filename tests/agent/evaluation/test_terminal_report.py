"""The table on the terminal: at any width, every number of every column that is shown is whole."""

from __future__ import annotations

import json
import re
import sys
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from agent.evaluation import run
from agent.evaluation.comparison.summary import summarise
from agent.evaluation.results import TrialJournal
from agent.evaluation.run import Refresher, evaluate
from agent.evaluation.terminal_report import (
    EXPENDABLE,
    HEADINGS,
    LEGEND,
    print_tables,
    table_lines,
    text_table,
)
from agent.placers.base import PLACERS, Budget
from agent.placers.improvements import MOST, Improvement, Improvements
from envs.problem import Problem
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec, trial
from tests.agent.placement_cases import make_cluster, training_graph

FAMILY = "recommenders-with-embedding-bags-and-a-long-name"
PLACER = "my-own-placement-of-the-recommender"
LINES = summarise(
    [
        trial("a", "policy-refine", 0.0123456, family=FAMILY),
        trial("b", "policy-refine", 12.3456, family=FAMILY, seed=1),
        trial("a", PLACER, 1234.5678, family=FAMILY),
        trial("a", "single", 0.25, family=FAMILY),
        trial("b", "single", 0.25, family=FAMILY, feasible=False),
    ]
)
FULL = table_lines(LINES, None)
SHOWN = [name for name in HEADINGS if name not in ("±", "/refine")]
"""Here no graph has two seeds, and no trial is one of refine."""


def cells_of(lines, headings):
    """The numbers of each row under some headings, by name."""
    rule = next(at for at, line in enumerate(lines) if set(line) == {"-"})
    rows = lines[rule + 1 : lines.index("", rule)]
    if len(rows[0].split()) < len(headings):
        rows = [f"{name} {numbers}" for name, numbers in zip(rows[::2], rows[1::2], strict=True)]
    return {row.split()[0]: row.split()[1:] for row in rows}


def test_the_full_table_shows_milliseconds_beside_ratios():
    cells = cells_of(FULL, SHOWN)
    assert cells["single"] == ["2", "250*", "0.250", "20.250", "2.500", "50%", "1", "0", "0.5"]
    assert cells["policy-refine"][1:3] == ["390.4", "0.390"]
    assert cells[PLACER][1:3] == ["1,234,568", "1234.568"]
    assert not any("Left out" in line for line in FULL)
    legend = FULL[FULL.index("") + 1 :]
    assert "simulated, not measured" in " ".join(legend)
    assert "* where others lack memory" in " ".join(legend)
    assert max(map(len, legend)) <= 80
    assert EXPENDABLE[-1] == "s", "what a trial took stays longest"


@pytest.mark.parametrize("width", [40, 60, 80, 120])
def test_no_number_is_cut_at_any_width(width):
    lines = table_lines(LINES, width)
    assert all(len(line) <= max(width, len(FAMILY)) for line in lines)
    note = " ".join(lines).partition("narrow: ")[2].partition(";")[0]
    left_out = note.split(", ") if note else []
    assert left_out == [name for name in EXPENDABLE if name in left_out]
    kept = [name for name in SHOWN if name not in left_out]
    rule = next(at for at, line in enumerate(lines) if set(line) == {"-"})
    head = " ".join(lines[:rule]).split()
    assert head[-len(kept) :] == kept
    everything = cells_of(FULL, SHOWN)
    shown = cells_of(lines, kept)
    for name, cells in shown.items():
        whole = dict(zip(SHOWN[1:], everything[name], strict=True))
        assert cells == [whole[heading] for heading in kept[1:]]
    assert shown.keys() == everything.keys()


def test_a_column_without_a_number_is_not_shown():
    rows = [("a", "-", "-"), ("b", "-", "2")]
    table = text_table(["name", "x", "y"], rows, width=80, expendable=["x", "y"])
    assert table.lines == ("name  y", "-------", "a     -", "b     2")
    assert table.left_out == ()
    assert "/refine" not in FULL[1].split()
    with_refine = [replace(line, ratio_to_refine=1.5) for line in LINES]
    assert "/refine" in table_lines(with_refine, None)[1].split()


def test_a_piped_table_is_in_full_and_without_colour(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_tables(LINES)
    printed = capsys.readouterr().out
    assert printed.splitlines() == FULL
    assert "\x1b" not in printed


def test_a_terminal_of_80_columns_gets_no_wider_line(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    print_tables(LINES)
    printed = capsys.readouterr().out.splitlines()
    assert printed == table_lines(LINES, 80)
    assert max(map(len, printed)) <= 80


@pytest.mark.parametrize("width", [40, None])
def test_the_legend_explains_the_columns_that_are_shown(width):
    lines = table_lines(LINES, width)
    explained = [name for name in LEGEND if re.search(rf"(?<!\S){name}: ", " ".join(lines))]
    left_out = " ".join(lines).partition("narrow: ")[2].partition(";")[0].split(", ")
    assert explained == [name for name in SHOWN if name in LEGEND and name not in left_out]
    assert not any("data-parallel" in line for line in lines)
    parallel = summarise([trial("a", "data-parallel", 0.25)])
    assert "data-parallel is no placement" in " ".join(table_lines(parallel, None))


def test_headings_say_the_granularity_where_it_is_not_op():
    by_op, by_module = (
        summarise([replace(trial("a", "single", 0.25), granularity=granularity)])
        for granularity in ("op", "module")
    )
    assert table_lines(by_op, None)[0] == "toy on c"
    assert table_lines(by_module, None)[0] == "toy on c, placed by module"
    assert (
        table_lines(by_module, None, 0, {"c": "uncalibrated"})[0]
        == "toy on c (uncalibrated), placed by module"
    )
    assert [line.granularity for line in by_op + by_module] == ["op", "module"]


def test_names_that_are_too_long_stand_above_their_numbers():
    table = text_table(("name", "a", "b"), [("x" * 30, "1.000", "22")], width=20, expendable=("b",))
    assert table.lines == ("name", "      a", "-" * 30, "x" * 30, "  1.000")
    assert table.left_out == ("b",)


def test_a_refresh_takes_a_small_share_of_the_time():
    now, calls = [0.0], []

    def write():
        calls.append(now[0])
        now[0] += 0.5

    refresher = Refresher(write, every_s=10.0, share=0.01, first_s=3.0, clock=lambda: now[0])
    for second in range(1000):
        now[0] = max(now[0], float(second))
        refresher.poll()
    assert calls[0] == 3.0
    assert all(after - before >= 50.0 for before, after in pairwise(calls))
    assert 15 <= len(calls) <= 20


def test_tables_and_report_are_refreshed_during_a_run(tmp_path, monkeypatch):
    seen, partial = [], []

    def look(done, total):
        if done > 1:
            assert (tmp_path / "summary.csv").exists()
            seen.append(len(rows_of(tmp_path)))

    monkeypatch.setattr(run, "Refresher", lambda write, **kwargs: Refresher(write, every_s=0.0, share=1e9))
    evaluate(
        small_spec(), tmp_path, report=look, write_partial=lambda found: partial.append(len(found.trials))
    )
    n = len(small_spec().tasks())
    assert seen == list(range(1, n))  # what was there before the last trial was counted
    assert partial == list(range(1, n + 1))


def test_improvements_get_faster_and_are_bounded():
    record = Improvements()
    for step in range(1000):
        record.add(step, step * 0.1, 1000.0 - step)
        record.add(step, step * 0.1, 1e6)
    kept = record.all()
    assert len(kept) <= MOST
    assert kept[0] == Improvement(0, 0.0, 1000.0)
    assert kept[-1] == Improvement(999, 999 * 0.1, 1.0)
    times = [item.step_time_s for item in kept]
    assert times == sorted(times, reverse=True)
    record.add(1000, 1.0, 0.5)
    assert record.all()[-1] == Improvement(1000, 1.0, 0.5)
    assert max(item.seconds for item in record.all()) == 1.0, "a kernel's seconds were counted at first"


@pytest.mark.parametrize("name", ["annealing", "refine", "random", "heft"])
def test_the_last_improvement_of_a_search_is_what_it_found(name):
    problem = Problem(training_graph(4, 2), make_cluster(2))
    found = PLACERS[name].place(problem, Budget(400), np.random.default_rng(0))
    last = found.improvements[-1]
    assert last.step_time_s == pytest.approx(found.step_time.total_s)
    assert 1 <= found.improvements[0].evaluations <= last.evaluations <= found.evaluations
    assert last.seconds <= found.wall_s


def test_improvements_survive_the_journal(tmp_path):
    trial = make_trial(improvements=(Improvement(1, 0.1, 3.0), Improvement(9, 0.2, 2.0)))
    path = tmp_path / "journal.jsonl"
    TrialJournal(path).add(trial)
    assert TrialJournal(path).trials[trial.key] == trial
    record = json.loads(path.read_text())
    del record["improvements"]
    path.write_text(json.dumps(record) + "\n")
    assert TrialJournal(path).trials[trial.key].improvements == ()


def test_an_evaluation_records_improvements(tmp_path):
    trials = evaluate(small_spec(placers=("annealing",)), tmp_path, report=quiet).trials
    assert all(trial.improvements[-1].step_time_s == pytest.approx(trial.step_time_s) for trial in trials)
