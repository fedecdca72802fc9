"""Runs that are killed, copied, moved or damaged go on as if nothing was, or are refused.

Trainings whose numbers are not finite end with one line, and keep what was good.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sb3_contrib import MaskablePPO

from agent.contexts import run_folder
from agent.learn.callbacks import AverageWeights
from agent.learn.config import TrainConfig
from agent.learn.metrics import UPDATES
from agent.learn.ppo import PlacementPPO
from agent.policy.serialization import load_policy
from tests import training_cases
from tests.faults.run_cases import (
    DAMAGES,
    PER_UPDATE,
    begin,
    changed,
    checkpoints,
    content,
    outcome,
    refused,
    resume,
    train,
)
from tests.fork_server import context

place = training_cases.place


def killed_while_a_run_is_opened(folder: Path, when: str, settings: dict[str, object]) -> None:
    def kill(*_: object) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    os.chdir(folder)
    if when == "before":
        run_folder.write_json_atomic = kill
    with run_folder.opened(Path("runs/one"), TrainConfig.from_json(settings, "test"), resume=False):
        kill()


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_before_or_after_the_configuration_is_written_wedges_no_name(
    place: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    settings = {"name": "one", "graphs": "graphs.jsonl", "timesteps": PER_UPDATE}
    settings |= {key.replace("-", "_"): value for key, value in training_cases.SMALL.items()}
    killed = context.Process(target=killed_while_a_run_is_opened, args=(place, when, settings))
    killed.start()
    killed.join()
    assert killed.exitcode == -signal.SIGKILL
    if when == "before":
        train("--resume", "--name", "one", code=2)
        assert "there is no run 'one'" in capsys.readouterr().err
        run = begin("one", updates=1)
    else:
        begin("one", code=2)
        assert "resume it with --resume" in capsys.readouterr().err
        run = resume("one", updates=1)
        assert (
            "runs/one holds no checkpoint yet; the training starts from the beginning"
            in capsys.readouterr().err
        )
    assert json.loads((run / "result.json").read_text())["finished"]


@pytest.mark.parametrize("put", [shutil.copytree, shutil.move])
def test_a_run_is_where_it_was_put(place: Path, put: Callable[[Path, Path], object]) -> None:
    original = begin("original")
    before = content(original)
    put(original, Path("runs") / "other")
    worst = {"best_score": 9.0, "start_score": 9.0, "least": []}
    last = checkpoints(Path("runs/other"))[-1]
    changed(last, lambda _, state: state["callbacks"]["KeepPolicy"].update(worst))
    other = resume("other")
    assert content(original) == (before if put is shutil.copytree else {})
    assert json.loads((other / "policy.json").read_text())["config"]["name"] == "other"
    assert [row[UPDATES] for row in outcome(other)[0]] == [*range(8)]


def test_a_run_that_goes_on_is_not_done_until_it_ends(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin("run")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agent.contexts.local.EventWriter.write", fail)
        resume("run", code=1)
    assert not (run / "result.json").exists()
    resume("run")
    assert json.loads((run / "result.json").read_text())["finished"]
    assert [row[UPDATES] for row in outcome(run)[0]] == [*range(8)]


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


@pytest.mark.parametrize(
    ("flag", "rate"),
    [("--learning-rate", "1e6"), ("--learning-rate", "1e30"), ("--final-learning-rate", "1e30")],
)
def test_a_training_that_diverges_is_no_success(
    place: Path, capsys: pytest.CaptureFixture[str], flag: str, rate: str
) -> None:
    run = begin("bad", "--checkpoint-every", "1", flag, rate, code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"train_agent.py: training diverged after [01] updates: ", line)
    assert line.endswith(f"with a lower {flag} (now {float(rate):g})")
    result = json.loads((run / "result.json").read_text())
    assert result["finished"] is False
    assert line == f"train_agent.py: {result['failure']}"
    for path in checkpoints(run):
        assert all(np.isfinite(tensor).all() for tensor in load_file(path).values())


def fill(network: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(value)


def fill_average(ppo: PlacementPPO) -> None:
    """Takes effect from the second update on, as the first copies the weights."""
    (average,) = (each for each in ppo.stateful_callbacks if isinstance(each, AverageWeights))
    fill(average.policy.network, math.nan)


def lose_value(ppo: PlacementPPO) -> None:
    """Takes effect in the third update."""
    if ppo.updates == 2:
        ppo.logger.record("train/value_loss", math.nan)


SCORES = "the policy's scores are not finite"


@pytest.mark.parametrize(
    ("where", "method", "spoil", "updates", "cause"),
    [
        (PlacementPPO, "train", lambda ppo: fill(ppo.policy, math.nan), 1, "the weights are not finite"),
        (PlacementPPO, "train", lambda ppo: fill(ppo.policy, 1e30), 1, SCORES),
        (PlacementPPO, "train", fill_average, 2, "the averaged weights are not finite"),
        (MaskablePPO, "train", lambda ppo: fill(ppo.policy, 1e30), 0, SCORES),
        (MaskablePPO, "train", lose_value, 2, "the value loss is nan"),
        (MaskablePPO, "_setup_model", lambda ppo: fill(ppo.policy, 1e30), 0, SCORES),
    ],
)
def test_weights_of_no_use_are_kept_nowhere_and_what_was_good_stays(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
    spoil: Callable[[PlacementPPO], None],
    updates: int,
    cause: str,
) -> None:
    real = getattr(where, method)

    def spoilt(ppo: PlacementPPO, *arguments: Any, **named: Any) -> Any:
        result = real(ppo, *arguments, **named)
        spoil(ppo)
        return result

    monkeypatch.setattr(where, method, spoilt)
    run = begin("bad", "--checkpoint-every", "1", code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"diverged after {updates} updates: {cause};" in line
    n_good = updates - (where is PlacementPPO)
    assert len(checkpoints(run)) == max(n_good, 0)
    assert (run / "policy.safetensors").exists() == (n_good > 0), "that of the first update is kept"
    if n_good > 0:
        load_policy(run)
        before = content(run)
        resume("bad", code=1)
        assert line == capsys.readouterr().err.splitlines()[-1]
        names = [name for name in before if name.startswith(("checkpoints", "policy", "metrics"))]
        assert {name: content(run)[name] for name in names} == {name: before[name] for name in names}
