"""The benchmark: its rows, its tables, and how what it finds enters the best known answers."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

import pytest

from agent.lab.bench import BenchmarkRow
from agent.lab.command import main
from agent.lab.experiment import EXPERIMENTS
from agent.lab.rows import Row, read_table, write_rows

NAME = "doppler:chain_mm"


def row(placer: str, step_s: float, instance: str = "doppler:a", best_s: float = 1.0) -> Row:
    return asdict(BenchmarkRow(instance, placer, 1.0, step_s, 10, 0.5, 1.0, best_s))


def test_tables_say_who_is_ahead_and_what_is_closed() -> None:
    rows = [
        *(row("refine", 1.0), row("heft", 1.5), row("metis", math.inf)),
        *(row("refine", 3.0, "doppler:b", 2.0), row("heft", 2.0, "doppler:b", 2.0)),
        *(row("refine", 2.0, "piper:c", 2.0), row("pipedream", 2.0, "piper:c", 2.0)),
        *(row("refine", 2.0, "piper:d", 2.0), row("pipedream", 2.0, "piper:e", 2.0)),
    ]
    placers, sources = (table.markdown(rows).splitlines() for table in EXPERIMENTS["benchmark"].tables)
    assert "| refine | 1.225 | 1.000 | 1.861 | 0 | 0.50 |" in placers
    assert "| metis |  |  |  | 1 | 0.50 |" in placers
    assert sources[2:] == [
        "| doppler | 2 | 1 | 1.414 | 1 | 0 | 1 | b 1.500 |",
        "| piper | 3 | 0 | 2.000 | 0 | 1 | 0 |  |",
        "| all | 5 | 1 | 1.741 | 1 | 1 | 1 |  |",
    ]


def test_a_run_resumes_and_shows_what_others_report(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    flags = f"--graphs {NAME} pipedream:alexnet --placers heft pipedream --seconds 0.1 --out {tmp_path}"
    words = ["benchmark", *flags.split()]
    assert main(words) == 0
    printed = capsys.readouterr().out
    assert "Doppler's reinforcement (1,000 episodes), as reported" in printed
    found = {row["placer"]: row for row in read_table(tmp_path / "benchmark.csv.gz")}
    assert [found["heft"][key] for key in ("best_s", "bound_s")] == pytest.approx([1.20007] * 2)
    assert found["heft"]["step_s"] > found["heft"]["best_s"]
    pipelined = found["pipedream"]
    assert pipelined["instance"] == "pipedream:alexnet"
    assert pipelined["bound_s"] < pipelined["best_s"] <= pipelined["step_s"]
    kept, _ = sorted((tmp_path / "instances").iterdir())
    write_rows(kept, [row("heft", 7.0, NAME)])
    assert main(words) == 0
    assert read_table(tmp_path / "benchmark.csv.gz")[0]["step_s"] == 7.0
    submission, pipeline = sorted((tmp_path / "placements").iterdir())
    assert "stage_of" in json.loads(pipeline.read_text())
    claims = json.loads(submission.read_text())
    assert (claims["graph"], claims["method"], claims["step_time_s"]) == (
        NAME,
        "heft",
        found["heft"]["step_s"],
    )


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


def test_a_folder_has_the_best_submission_of_all_runs_and_the_rows_of_the_last(tmp_path: Path) -> None:
    words = f"benchmark --graphs {NAME} piper:resnet --seconds 0.1 --out {tmp_path} --placers".split()
    for placer, placed in ("refine", ["piper:resnet", NAME]), ("heft", [NAME]):
        assert main([*words, placer]) == 0
        rows = read_table(tmp_path / "benchmark.csv.gz")
        assert sorted(row["instance"] for row in rows if row["seconds"]) == sorted(placed)
    submission, _ = sorted((tmp_path / "placements").iterdir())
    assert json.loads(submission.read_text())["method"] == "refine"
