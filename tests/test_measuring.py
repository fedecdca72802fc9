"""Measured step times from outside: the flags of both commands that run a model on this machine."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from agent.commands import evaluate, train
from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.measured.session import MeasuringSession
from agent.learn.metrics import SCORE
from envs.cluster.cluster import Device
from envs.cluster.files import write_cluster
from envs.cluster.presets import uniform
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import DeviceLostError
from envs.runtime.step_meter import MeasuredStep, StepMeter
from graphs.system.array_types import IntArray
from tests.faults.processes import table_of

MODEL = """
import torch
from torch import nn


def net():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 8)), torch.zeros(4, 32)
"""
FLAGS = ("--model", "own_model:net", "--optimizer", "sgd", "--cluster", "2xcpu")
MEASURED = (*FLAGS, "--granularity", "module", "--reward", "measured", "--init", "pretrained")
SMALL = ("--n-envs", "4", "--repeats", "4", "--n-steps", "6", "--batch-size", "24", "--epochs", "1")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with a model, on a machine that was measured to be slow."""
    (tmp_path / "own_model.py").write_text(MODEL)
    home = tmp_path / "home"
    home.mkdir()
    device = Device("cpu", "cpu-for-tests", 1e10, flops_per_s=1e9, bytes_per_s=1e9, launch_s=1e-6)
    write_cluster(home / "2xcpu.json", uniform("2xcpu", device, 2, 1e9, sharing="pair"))
    monkeypatch.setenv("PLACEWALK_HOME", str(home))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_an_evaluation_profiles_measures_and_compares(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    measure = ("--profile", "--measured", "2", "--fidelity", "4")
    words = [*FLAGS, "--placers", "single", "heft", "round-robin", *measure, "--out", "out"]
    assert evaluate.main(words) == 0
    printed = capsys.readouterr().out
    assert "net on 2xcpu, measured on this machine (20 steps each)" in printed
    assert "picking the simulator's best costs" in printed
    measured = table_of(place / "out" / "measured.csv")
    assert {"single"} < {row["placer"] for row in measured} <= {"single", "heft", "round-robin"}
    assert all(
        0 < float(row["low_s"]) <= float(row["measured_s"]) <= float(row["high_s"]) for row in measured
    )
    fidelity = table_of(place / "out" / "fidelity.csv")
    assert [row["source"] for row in fidelity[:2]] == ["device 0", "device 1"]
    assert len(fidelity) == 4
    (profile,) = (place / "home" / "profiles" / "cpu-for-tests").iterdir()
    seconds = json.loads(profile.read_text())["seconds"]
    assert sum(seconds) == pytest.approx(float(fidelity[0]["predicted_s"]))
    known = (place / "out" / "measurements.jsonl").read_text()
    assert evaluate.main(words) == 0  # nothing is timed again
    assert (place / "out" / "measurements.jsonl").read_text() == known
    assert table_of(place / "out" / "measured.csv") == measured

    (place / "out" / "measurements.jsonl").write_text(known + '{"placement": 1}\n')
    assert evaluate.main(words) == 2
    assert "measurements.jsonl:" in (err := capsys.readouterr().err)
    assert "remove the line, and what it held is made again" in err


def test_an_evaluation_adapts_to_what_it_measures(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    made: list[dict[str, str]] = []
    steps_s: list[float] = []

    def measured(meter: StepMeter, device_of: IntArray, n_steps: object) -> MeasuredStep:
        """The fewer ops are on the first device, the shorter is the step; the second placement cannot run."""
        placed = [f"cpu{device}" for device in device_of]
        made.append(dict(zip(meter.captured.graph.op_names, placed, strict=True)))
        steps_s.append(math.inf if len(made) == 2 else 1e-3 * (1 + placed.count("cpu0")))
        if len(made) == 2:
            return MeasuredStep(math.nan, math.nan, math.nan, 0, "device 1: no result in 5 s")
        return MeasuredStep(steps_s[-1], 1e-3, 1.0, 20)

    monkeypatch.setattr(StepMeter, "measure", measured)
    words = [*FLAGS, "--placers", "single", "heft", "--measured", "5", "--adapt", "--out", "out"]
    assert evaluate.main(words) == 0
    printed = capsys.readouterr().out
    assert f"placements of the shortest measured steps: {Path('out') / 'adapted'}" in printed
    rows = table_of(place / "out" / "measured.csv")
    assert rows[0]["placer"] in ("single", "heft")
    assert [row["placer"] for row in rows].count("adapt") >= 2
    assert len(rows) == len(made) in (5, 6)
    answer = json.loads((place / "out" / "adapted" / "2xcpu.json").read_text())
    assert answer["device_of"] == made[steps_s.index(min(steps_s))]


def test_a_policy_learns_from_measured_step_times(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = [*MEASURED, *SMALL, "--timesteps", "48", "--eval-every", "1"]
    assert train.main([*words, "--name", "own"]) == 0
    run = place / "runs" / "own"
    known = [json.loads(line) for line in (run / "measurements.jsonl").read_text().splitlines()]
    assert len({record["placement"] for record in known}) == len(known) > 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row["timesteps"] for row in rows] == [0, 24, 48]
    # One device takes what was measured, not what the slow cluster file says.
    assert 0.2 < rows[-1][SCORE] < 20
    assert train.main(["--resume", "--name", "own", "--model", "own_model:net", "--timesteps", "72"]) == 0


def test_a_device_that_is_lost_while_ops_are_timed_is_no_wrong_input(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(devices: DeviceProcesses, commands: object) -> list[object]:
        raise DeviceLostError("device 1: worker killed by SIGKILL")

    monkeypatch.setattr(DeviceProcesses, "ask", lost)
    assert evaluate.main([*FLAGS, "--placers", "single", "--profile", "--out", "out"]) == 1
    err = capsys.readouterr().err.splitlines()
    assert err[-1] == "evaluate.py: device 1: worker killed by SIGKILL"


def test_placements_that_cannot_run_are_told_once(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def failed(meter: StepMeter, device_of: object, n_steps: object) -> MeasuredStep:
        return MeasuredStep(math.nan, math.nan, math.nan, 0, "device 1: no result in 5 s")

    monkeypatch.setattr(StepMeter, "measure", failed)
    assert train.main([*MEASURED, *SMALL, "--timesteps", "24", "--name", "own"]) == 0
    told = [line for line in capsys.readouterr().err.splitlines() if "no result" in line]
    assert told == [
        "a placement cannot be run, and counts as out of memory: device 1: no result in 5 s; "
        "see runs/own/measurements.jsonl for the others"
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--families", "ptb"], "give --model, and neither --families nor --graphs"),
        ([*FLAGS], "starts from a policy; give --init pretrained"),
        ([*FLAGS, "--init", "pretrained", "--mdp", "improve"], "needs --mdp construct"),
        ([*FLAGS, "--init", "pretrained", "--randomizations", "2"], "leave out --randomizations"),
        ([*FLAGS, "--init", "pretrained", "--cluster", "4xv100"], "this machine has only"),
        ([*FLAGS, "--init", "pretrained", "--cluster", "3xcpu"], "measure --processes 3"),
    ],
)
def test_what_cannot_be_measured_is_one_line(
    words: list[str], message: str, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert train.main([*words, "--reward", "measured", "--name", "no"]) == 2
    err = [line for line in capsys.readouterr().err.splitlines() if "returns no loss" not in line]
    assert message in err[0]
    assert len(err) == 1
    assert not (place / "runs" / "no").exists()


def test_the_step_of_a_token_is_not_measured(tmp_path: Path) -> None:
    with pytest.raises(
        EvaluationError, match="--prompt places a step without weights, which cannot be measured"
    ):
        MeasuringSession(EvaluationConfig(model="any:model", prompt=9), (), tmp_path, 1.0)
