"""Searched orders of actions against schedules, on a small graph."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

from agent.lab import pipeline_schedules
from agent.lab.command import main
from agent.lab.pipeline_schedules import LEVELS, PROFILED, USED, ScheduleRow, schedule_tables
from agent.lab.rows import write_rows
from tests.envs.pipeline.random_pipelines import random_training_graph


def test_a_run_resumes_and_prints_its_tables(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    graph = random_training_graph(np.random.default_rng(0), 8)
    monkeypatch.setattr(pipeline_schedules, "sealed_graphs", lambda *_, **named: [graph])
    monkeypatch.setattr(pipeline_schedules, "COUNTS", (4,))
    monkeypatch.setattr(pipeline_schedules, "USED", USED[:1])
    monkeypatch.setattr(pipeline_schedules, "PROFILES_USED", ("gnmt",))
    words = ["pipeline_schedules", "--seconds", "0.01", "--out", str(tmp_path)]
    assert main(words) == 0
    printed = capsys.readouterr().out
    for name in (USED[0], PROFILED, "M = 4", "all"):
        assert printed.count(f"\n| {name} | ") == 1
    monkeypatch.setattr(pipeline_schedules, "_rows", lambda *case: iter([()]))  # cannot be written
    assert main(words) == 0
    assert capsys.readouterr().out == printed


def test_a_step_is_compared_with_the_best_that_fits(tmp_path: Path) -> None:
    row = partial(ScheduleRow, microbatches=4, memory="1.0", seconds=0.0)
    steps = (("1f1b", 4.0, True), ("zero-bubble", 1.0, False), ("searched", 2.0, True))
    rows = [row(graph="a", family="unet", cluster=USED[0], schedule=n, step_s=s, fits=f) for n, s, f in steps]
    rows += [
        row(graph="b", family="dit", cluster=USED[0], schedule=n, step_s=8.0, fits=True) for n, *_ in steps
    ]
    write_rows(tmp_path / "rows.csv", rows)
    head, _, first, *_ = next(schedule_tables(tmp_path / "rows.csv")).splitlines()
    column = head.split(" | ").index(f"{LEVELS[0]:g} x memory")
    assert first.split(" | ")[column].startswith("0.707 (0.500 to 1.000); 1 : 0")
