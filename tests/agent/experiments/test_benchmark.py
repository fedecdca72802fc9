"""The benchmark: its rows, its tables, and how what it finds enters the best known answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.experiments.benchmark import BenchmarkRow, benchmark_tables, calibrated_loop_s
from agent.experiments.best_known import enter, main
from agent.experiments.command import main as experiments
from agent.experiments.rows import read_rows, write_rows
from agent.instances.best_known import (
    BestKnown,
    decoded,
    encoded,
    read_best_known,
    read_placements,
    write_best_known,
)
from agent.instances.instance import find_instances
from agent.instances.submissions import write_submission
from envs.placement.placement import single_device

NAME = "doppler:chain_mm"


def row(placer: str, step_s: float, instance: str = "doppler:a", **others: float) -> BenchmarkRow:
    best = {"bound_s": 1.0, "best_s": 1.0} | others
    return BenchmarkRow(instance, placer, 1.0, step_s, 10, 0.5, **best)


def test_tables_say_who_is_ahead_and_what_is_closed(tmp_path: Path) -> None:
    rows = [
        *(row("refine", 1.0), row("heft", 1.5), row("metis", float("inf"))),
        *(row("refine", 3.0, "doppler:b", best_s=2.0), row("heft", 2.0, "doppler:b", best_s=2.0)),
        *(row("refine", 2.0, "piper:c", best_s=2.0), row("piper", 2.0, "piper:c", best_s=2.0)),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    placers, sources, instances = benchmark_tables(tmp_path / "rows.csv")
    assert "| refine | 1.225 | 1.000 | 1.817 | 0 | 0.50 |" in placers.splitlines()
    assert "| metis |  |  |  | 1 | 0.50 |" in placers.splitlines()
    assert sources.splitlines()[2:] == [
        "| doppler | 2 | 1 | 1.414 | 1 | 0 | 1 | b 1.500 |",
        "| piper | 1 | 0 | 2.000 | 0 | 1 | 0 |  |",
        "| all | 3 | 1 | 1.587 | 1 | 1 | 1 |  |",
    ]
    assert "| doppler:a | 1000 | optimal | 1.000 | 1.500 | heft |" in instances.splitlines()


def test_a_run_resumes_and_shows_what_others_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "benchmark",
        "--graphs",
        NAME,
        "--placers",
        "heft",
        "piper",
        "--seconds",
        "0.1",
        "--out",
        str(tmp_path),
    ]
    assert experiments(words) == 0
    printed = capsys.readouterr().out
    assert "Doppler's reinforcement (1,000 episodes), as reported" in printed
    found = {row.placer: row for row in read_rows(tmp_path / "benchmark.csv.gz", BenchmarkRow)}
    assert [found["heft"].best_s, found["heft"].bound_s] == pytest.approx([1.20007] * 2)
    assert found["heft"].step_s > found["heft"].best_s
    assert "piper" not in found
    (kept,) = (tmp_path / "instances").iterdir()
    write_rows(kept, [row("heft", 7.0, NAME)])
    assert experiments(words) == 0
    again = read_rows(tmp_path / "benchmark.csv.gz", BenchmarkRow)
    assert again[0].step_s == 7.0
    assert not (tmp_path / "placements").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--placers nix", "unknown placer 'nix'; use some of memory-fill"),
        ("--graphs nix", "no instance is named 'nix'"),
    ],
)
def test_wrong_input_is_one_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert experiments(["benchmark", "--quick", *words.split(), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_the_loop_takes_time() -> None:
    assert calibrated_loop_s() > 0


def test_a_new_best_and_a_greater_bound_enter_the_table(tmp_path: Path) -> None:
    table, run = tmp_path / "table", tmp_path / "run"
    table.mkdir()
    (instance,) = find_instances([NAME])
    worse = single_device(instance.graph, 0)
    before = BestKnown(NAME, instance.simulate(worse).total_s, 0.1, "single", "us", "abc", "2026-01-01", 1.0)
    write_best_known([before], {NAME: encoded(NAME, worse)}, table)
    claims = {"method": "refine", "seconds": 2.0}
    write_submission(run / "placements" / "it.json", instance, decoded(read_placements()[NAME]), claims)
    write_rows(run / "benchmark.csv.gz", [row("exact", 1.3, NAME, bound_s=1.20007, best_s=1.3)])
    assert enter(run, table) == 1
    after = read_best_known(table)[NAME]
    assert (after.method, after.seconds, after.found_by) == ("refine", 2.0, "unknown")
    assert after.step_time_s == pytest.approx(1.20007)
    assert after.bound_s == pytest.approx(1.20007)
    assert read_placements(table)[NAME] == read_placements()[NAME]
    assert enter(run, table) == 0


def test_a_broken_submission_enters_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "it.json").write_text(json.dumps({"format": "placewalk.placement/1"}))
    assert main([str(tmp_path)]) == 2
    assert "are missing" in capsys.readouterr().err
