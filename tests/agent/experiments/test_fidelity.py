"""The experiment on whole steps: its rows and table, and what wrong input is told."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agent.experiments.command import main
from agent.experiments.experiment import EXPERIMENTS
from agent.experiments.fidelity.models import GraphCache
from agent.experiments.fidelity.steps import StepRow
from agent.experiments.rows import read_rows
from graphs.op_graph import build_graph


@pytest.fixture
def steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with one measured step of a model whose graph is one op."""
    folder = tmp_path / "steps"
    (folder / "Tesla_T4").mkdir(parents=True)
    (folder / "Tesla_T4" / "bert_large-inf-512-8.json").write_text(json.dumps({"e2e_latency": 694.5}))
    graph = build_graph("one", "", [{"name": "a", "flops": 1e12}], [])
    monkeypatch.setattr(GraphCache, "workload", lambda cache, workload: graph)
    return folder


def test_an_experiment_writes_rows_and_shows_them_again(
    steps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["costs_of_steps", "--steps-in", str(steps)]) == 0
    folder = Path("runs") / "costs_of_steps"
    assert [path.name for path in folder.iterdir()] == ["costs_of_steps.csv"]
    (row,) = read_rows(folder / "costs_of_steps.csv", StepRow)
    assert (row.device, row.name, row.measured_s) == ("Tesla_T4", "bert_large-inf-512-8", 0.6945)
    assert row.error == pytest.approx(row.predicted_s / 0.6945 - 1)
    question, table = capsys.readouterr().out.split("\n\n", 1)
    assert question == EXPERIMENTS["costs_of_steps"].question
    assert "| Tesla_T4 | 1 |" in table
    assert main(["costs_of_steps", "--only", "tables", "--out", str(folder)]) == 0
    assert capsys.readouterr().out == table


def test_an_unknown_device_is_refused_in_one_line(
    steps: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (steps / "Tesla_T4").rename(steps / "Voodoo2")
    assert main(["costs_of_steps", "--steps-in", str(steps), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "Voodoo2" in error
    assert error.count("\n") == 1


def test_a_folder_without_steps_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["costs_of_steps", "--steps-in", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds no measured steps" in capsys.readouterr().err
