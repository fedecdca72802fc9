"""Runs whose files are damaged, gone or another run's: they go on as if nothing was, or are refused."""

from __future__ import annotations

import math
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from tests import training_cases
from tests.faults.run_cases import DAMAGES, begin, changed, checkpoints, outcome, refused, resume

place = training_cases.place


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_checkpoint_before_a_damaged_one_leads_to_the_same_policy(
    place: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    run = begin("damaged", updates=6)
    before, newest = checkpoints(run)
    expected, weights = outcome(run), load_file(newest)
    damage(newest)
    capsys.readouterr()
    resume("damaged", updates=6)
    line = capsys.readouterr().err.splitlines()[0]
    assert f"{newest}: " in line
    assert f"resumes from {before.name}" in line
    assert outcome(run) == expected
    again = load_file(newest)
    assert all(np.array_equal(again[name], tensor) for name, tensor in weights.items())


def test_a_run_whose_checkpoints_are_all_damaged_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for damage, path in zip(DAMAGES, checkpoints(begin("damaged")), strict=False):
        damage(path)
    refused(capsys, "damaged", "00000005.safetensors: ")


def test_a_run_whose_checkpoints_are_gone_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished, stopped = begin("finished", updates=2), begin("stopped", updates=3)
    (stopped / "result.json").unlink()
    for run, updates in ((finished, 2), (stopped, 3)):
        shutil.rmtree(run / "checkpoints")
        refused(capsys, run.name, f"holds no checkpoint, but {updates} updates were made")


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", "1"), "a run with another setting of seed"),
        (("--hidden", "16"), "a run with another setting of hidden"),
        (("--cluster", "2xk80"), "a run with another setting of cluster"),
    ],
)
def test_a_checkpoint_of_another_run_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], flags: tuple[str, ...], message: str
) -> None:
    other, run = begin("other", *flags), begin("run")
    shutil.copy(checkpoints(other)[-1], checkpoints(run)[-1])
    refused(capsys, "run", message)


@pytest.mark.parametrize(
    "change",
    [
        lambda tensors, state: state.pop("updates"),
        lambda tensors, state: state.update(updates=4),
        lambda tensors, state: state.update(updates=2**70),
        lambda tensors, state: state.update(timesteps="640"),
        lambda tensors, state: state.update(epochs=-1),
        lambda tensors, state: state.pop("callbacks"),
        lambda tensors, state: state["callbacks"].update(TimeLimit=3),
        lambda tensors, state: state["callbacks"]["TimeLimit"].update(wall_s=math.nan),
        lambda tensors, state: state["callbacks"]["TimeLimit"].pop("cpu_s"),
        lambda tensors, state: state["callbacks"]["KeepPolicy"].update(best_score=None),
        lambda tensors, state: state["callbacks"]["KeepPolicy"].update(least=[math.nan]),
        lambda tensors, state: state["callbacks"]["KeepPolicy"].pop("start_score"),
        lambda tensors, state: state["callbacks"]["CompareWithSearch"].update(first=3),
        lambda tensors, state: state["callbacks"]["AverageWeights"].pop("updates"),
        lambda tensors, state: state.update(arguments=[1]),
        lambda tensors, state: state["policy_kwargs"].update(unknown=1),
        lambda tensors, state: state["shape"].update(hidden=9),
        lambda tensors, state: state["mdp"].update(mdp="unknown"),
        lambda tensors, state: tensors.update({"optimizer/0/exp_avg": torch.zeros(3, 3)}),
        lambda tensors, state: tensors.update({"optimizer/999/step": torch.zeros(())}),
        lambda tensors, state: [tensors.pop(name) for name in list(tensors) if name.startswith("policy/")],
        lambda tensors, state: [tensors.pop(name) for name in list(tensors) if name.startswith("Average")],
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any], dict[str, Any]], object],
) -> None:
    changed(checkpoints(begin("run"))[-1], change)
    refused(capsys, "run", "00000005.safetensors: does not fit this run")


@pytest.mark.parametrize("change", ["empty", "gone", "a row gone", "of a longer run"])
def test_rows_that_a_checkpoint_comes_after_are_missed(
    place: Path, capsys: pytest.CaptureFixture[str], change: str
) -> None:
    run = begin("run", updates=3)
    metrics, row = run / "metrics.jsonl", 1
    lines = metrics.read_text().splitlines(keepends=True)
    metrics.write_text("")
    if change == "gone":
        metrics.unlink()
    elif change == "a row gone":
        metrics.write_text("".join([*lines[:2], *lines[3:]]))
        row = 2
    elif change == "of a longer run":
        metrics.write_text("".join(lines))
        shutil.rmtree(run / "checkpoints")
        shutil.copytree(begin("longer") / "checkpoints", run / "checkpoints")
        row = 4
    refused(capsys, "run", f"metrics.jsonl: has no row of update {row}, though 0000000")


@pytest.mark.parametrize("name", ["metrics.jsonl", "checkpoints/00000005.safetensors"])
def test_a_pipe_is_no_file_of_a_run(place: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    run = begin("run")
    for path in checkpoints(run)[:-1]:
        path.unlink()
    (run / name).unlink()
    os.mkfifo(run / name)
    capsys.readouterr()
    resume("run", code=2)
    assert f"{name}: is no regular file" in capsys.readouterr().err


def test_damaged_metrics_are_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = begin("damaged") / "metrics.jsonl"
    path.write_text("[" * 99999 + "\n" + path.read_text())
    refused(capsys, "damaged", "runs/damaged/metrics.jsonl:1: is no JSON")


@pytest.mark.parametrize(
    "record", ["", '{"format": "placewalk.references/1", "evaluations": 10000}', '{"format": "other"}']
)
def test_damaged_references_are_found_again(
    place: Path, capsys: pytest.CaptureFixture[str], record: str
) -> None:
    run = begin("run")
    path = run / "references.json"
    whole = path.read_bytes()
    path.write_text(record)
    capsys.readouterr()
    resume("run")
    assert f"{path}: " in capsys.readouterr().err.splitlines()[0]
    assert path.read_bytes() == whole
