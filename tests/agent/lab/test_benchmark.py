"""The benchmark: its rows, its tables, and how what it finds enters the best known answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.lab.benchmark import BenchmarkRow, benchmark_tables, calibrated_loop_s
from agent.lab.command import main
from agent.lab.rows import read_rows, write_rows

NAME = "doppler:chain_mm"


def row(placer: str, step_s: float, instance: str = "doppler:a", **others: float) -> BenchmarkRow:
    best = {"bound_s": 1.0, "best_s": 1.0} | others
    return BenchmarkRow(instance, placer, 1.0, step_s, 10, 0.5, **best)


def test_tables_say_who_is_ahead_and_what_is_closed(tmp_path: Path) -> None:
    rows = [
        *(row("refine", 1.0), row("heft", 1.5), row("metis", float("inf"))),
        *(row("refine", 3.0, "doppler:b", best_s=2.0), row("heft", 2.0, "doppler:b", best_s=2.0)),
        *(row("refine", 2.0, "piper:c", best_s=2.0), row("piper", 2.0, "piper:c", best_s=2.0)),
        *(row("refine", 2.0, "piper:d", best_s=2.0), row("piper", 2.0, "piper:e", best_s=2.0)),
    ]
    write_rows(tmp_path / "rows.csv", rows)
    placers, sources = benchmark_tables(tmp_path / "rows.csv")
    assert "| refine | 1.225 | 1.000 | 1.861 | 0 | 0.50 |" in placers.splitlines()
    assert "| metis |  |  |  | 1 | 0.50 |" in placers.splitlines()
    assert sources.splitlines()[2:] == [
        "| doppler | 2 | 1 | 1.414 | 1 | 0 | 1 | b 1.500 |",
        "| piper | 3 | 0 | 2.000 | 0 | 1 | 0 |  |",
        "| all | 5 | 1 | 1.741 | 1 | 1 | 1 |  |",
    ]


def test_a_run_resumes_and_shows_what_others_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--graphs {NAME} pipedream:alexnet --placers heft piper --seconds 0.1 --out {tmp_path}"
    words = ["benchmark", *flags.split()]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Doppler's reinforcement (1,000 episodes), as reported" in printed
    found = {row.placer: row for row in read_rows(tmp_path / "benchmark.csv.gz", BenchmarkRow)}
    assert [found["heft"].best_s, found["heft"].bound_s] == pytest.approx([1.20007] * 2)
    assert found["heft"].step_s > found["heft"].best_s
    assert found["piper"].instance == "pipedream:alexnet"
    assert found["piper"].bound_s < found["piper"].best_s <= found["piper"].step_s
    kept, _ = sorted((tmp_path / "instances").iterdir())
    write_rows(kept, [row("heft", 7.0, NAME)])
    assert main(words) == 0
    again = read_rows(tmp_path / "benchmark.csv.gz", BenchmarkRow)
    assert again[0].step_s == 7.0
    submission, pipelined = sorted((tmp_path / "placements").iterdir())
    assert "stage_of" in json.loads(pipelined.read_text())
    claims = json.loads(submission.read_text())
    assert (claims["graph"], claims["method"], claims["step_time_s"]) == (NAME, "heft", found["heft"].step_s)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--placers nix", "unknown placer 'nix'; use some of memory-fill"),
        ("--graphs nix", "no instance is named 'nix'"),
        ("--graphs piper:resnet --placers heft", "none of the placers suits these instances"),
    ],
)
def test_wrong_input_is_one_line(
    words: str, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["benchmark", "--quick", *words.split(), "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err


def test_rows_of_other_placers_are_not_those_of_a_run_without_suiting_ones(tmp_path: Path) -> None:
    words = f"benchmark --graphs {NAME} piper:resnet --seconds 0.1 --out {tmp_path} --placers".split()
    for placers, placed in (["refine"], ["piper:resnet", NAME]), (["heft"], [NAME]):
        assert main([*words, *placers]) == 0
        rows = read_rows(tmp_path / "benchmark.csv.gz", BenchmarkRow)
        assert sorted(row.instance for row in rows if row.seconds) == sorted(placed)


def test_a_better_submission_of_an_earlier_run_stays(tmp_path: Path) -> None:
    words = f"benchmark --graphs {NAME} --seconds 0.1 --out {tmp_path} --placers".split()
    for placer in ("refine", "single"):
        assert main([*words, placer]) == 0
    (submission,) = (tmp_path / "placements").iterdir()
    assert json.loads(submission.read_text())["method"] == "refine"


def test_the_loop_takes_time() -> None:
    assert calibrated_loop_s() > 0
