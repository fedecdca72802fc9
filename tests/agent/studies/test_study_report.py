"""What is said of a study: settings by their mean over seeds, warm starts against cold ones."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.studies.record import COMPLETE, FAILED, STALE, Attempt, Record
from agent.studies.study_report import compared, warm_against_cold

ROW = Attempt("s", 1, "000-seed-0", "grid", "hidden=8", "grid", 0, COMPLETE, best_score=0.5, held_out=0.6)


def test_settings_stand_by_their_mean_over_seeds() -> None:
    rows = [
        ROW,
        replace(ROW, trial="000-seed-1", seed=1, best_score=0.7, held_out=0.8),
        replace(ROW, trial="001-seed-0", component="hidden=4", best_score=0.4, held_out=None),
        replace(ROW, trial="002-seed-0", component="hidden=2", status=FAILED, best_score=0.1),
    ]
    head, *lines = compared(rows)
    assert head.split() == ["/single", "±", "held", "out", "seeds", "settings"]
    assert [line.split() for line in lines] == [
        ["0.400", "-", "-", "1", "hidden=4"],
        ["0.600", "0.141", "0.700", "2", "hidden=8"],
    ]


def test_a_warm_start_is_paired_with_its_control(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the study before has cost counts once: rows that a later attempt went on with are in that one."""
    monkeypatch.chdir(tmp_path)
    before = tmp_path / "runs" / "before"
    before.mkdir(parents=True)
    record = Record(before)
    record.add(replace(ROW, status=STALE, decisions=300))
    record.add(replace(ROW, attempt=2, decisions=1_000))
    rows = [
        replace(ROW, best_score=0.4, decisions=100),
        replace(ROW, trial="000-seed-0-cold", mode="cold", best_score=0.8, decisions=200),
        replace(ROW, trial="001-seed-0", best_score=0.1),
    ]
    lines = warm_against_cold(rows, "trial:before/000-seed-0")
    assert lines == [
        "from trial:before/000-seed-0: 0.500 of the step time from random weights, over 1 pairs,",
        "by 100 decisions (1,000 before that, in its study) against 200",
    ]
    unknown = "those before that are not known"
    table = (before / "trials.csv").read_text()
    for damaged in (table.replace(",", ";"), table.replace("1000", "1 000"), table + "\nshort,1\n"):
        (before / "trials.csv").write_text(damaged)
        assert unknown in warm_against_cold(rows, "trial:before/000-seed-0")[1]
    assert unknown in warm_against_cold(rows, "pretrained")[1]
    assert warm_against_cold(rows[2:], "pretrained") == []
