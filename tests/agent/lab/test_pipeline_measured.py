"""The rounds of measured pipelines, with steps that a stand-in says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.lab.command import main
from agent.lab.pipeline_measured import (
    MeasuredPipelineRow,
    measured_rows,
    splits_of,
    stages_at,
    steady,
)
from agent.lab.rows import read_rows, write_rows
from envs.cluster.cluster import Device
from envs.cluster.files import write_cluster
from envs.cluster.presets import uniform
from envs.pipeline.chain import chain_of
from envs.problem import Problem
from envs.runtime.step_meter import MeasuredStep, StepMeter
from graphs.dataset import load_family

DEVICE = Device("cpu", "cpu-for-tests", 1e10, flops_per_s=1e9, bytes_per_s=1e9, launch_s=1e-6)
CLUSTER = uniform("2xcpu", DEVICE, 2, 1e9, sharing="pair")


@pytest.fixture
def counted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """What is measured on a machine where all takes a millisecond an op, or ten microbatches a second."""
    calls = list[Any]()

    def op_seconds(meter: StepMeter, device: int, n_steps: int) -> Any:
        calls.append(device)
        return np.full(meter.captured.graph.n_ops, 1e-3)

    def measure(meter: StepMeter, placed: Any, n_steps: int) -> MeasuredStep:
        calls.append(placed)
        seconds = placed[1].microbatches / 10 / len(placed[0].ranks)
        return MeasuredStep(seconds, seconds, seconds, n_steps)

    home = tmp_path / "home"
    home.mkdir()
    write_cluster(home / "2xcpu.json", CLUSTER)
    monkeypatch.setenv("PLACEWALK_HOME", str(home))
    monkeypatch.setattr(StepMeter, "op_seconds", op_seconds)
    monkeypatch.setattr(StepMeter, "measure", measure)
    return calls


def test_rounds_measure_all_once_and_are_not_made_again(
    tmp_path: Path, counted: list[Any], capsys: pytest.CaptureFixture[str]
) -> None:
    (rows,) = measured_rows(tmp_path, ("resnet",), 2)
    n_splits = len({row.split for row in rows})
    assert len(rows) == 2 * n_splits >= 40
    assert len(counted) == 1 + 2 * (1 + n_splits)  # ops before the first round too
    (again,) = measured_rows(tmp_path, ("resnet",), 3)
    assert [row for row in again if row.round < 3] == rows
    assert len(counted) == 1 + 3 * (1 + n_splits)
    write_rows(tmp_path / "pipeline_measured.csv.gz", rows)
    assert read_rows(tmp_path / "pipeline_measured.csv.gz", MeasuredPipelineRow) == rows
    step_s = {row.split: row.simulated_s for row in rows}
    assert step_s["1f1b, 8, 30%"] < step_s["1f1b, 8, 10%"] < step_s["single"]
    assert main(["pipeline_measured", "--only", "tables", "--out", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert f"| resnet | {n_splits} | " in first
    assert "single: 1.000 (1.000)" in second

    (tmp_path / "resnet-1.json").write_text("{}")
    words = ["pipeline_measured", "--graphs", "resnet", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "resnet-1.json: holds other splits; remove it" in capsys.readouterr().err


def test_a_share_is_what_the_first_device_computes() -> None:
    problem = Problem(load_family("resnet")[0], CLUSTER)
    chain = chain_of(problem)
    for share, n_rounds in ((0.3, 1), (0.7, 2)):
        stages = stages_at(chain, share, n_rounds)
        assert stages.devices.tolist() == [0, 1] * n_rounds
        load = problem.op_seconds[(stages.stage_of >= 0) & (stages.device_of == 0), 0].sum()
        assert load / chain.seconds_before[0, -1] == pytest.approx(share, abs=0.05)


def test_splits_differ_and_begin_with_one_device() -> None:
    splits = splits_of(Problem(load_family("gpt")[0], CLUSTER))
    assert next(iter(splits)) == "single"
    where = {(pipeline, stages.stage_of.tobytes()) for stages, pipeline in splits.values()}
    assert len(where) == len(splits) >= 20


def test_drift_of_whole_rounds_cancels() -> None:
    steps, drift = np.array([1.0, 2.0, 3.0]), np.array([1.0, 5.0, 0.5, 2.0])
    whole, first, last = steady(steps[:, None] * drift)
    for found in (whole, first, last):
        assert found / found[0] == pytest.approx(steps)
    assert np.array(steady(steps[:, None])) == pytest.approx(np.tile(steps, (3, 1)))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--graphs", "nothing"], "unknown model 'nothing'; known are gpt"),
        (["--rounds", "0"], "0 rounds; give at least 1"),
    ],
)
def test_bad_input_is_one_line(words: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline_measured", *words]) == 2
    assert message in capsys.readouterr().err
