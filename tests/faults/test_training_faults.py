"""Faults of trainings, made for real: kills, copied runs, numbers that are not finite, damaged files."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file, save_file
from sb3_contrib import MaskablePPO

from agent.commands import train as train_agent
from agent.policy.serialization import load_policy
from agent.training.checkpoints import FORMAT, read_tensors, write_tensors
from agent.training.imitation.phases import OnPolicyImitation
from agent.training.metrics import SPEED, WALL_S
from agent.training.phase import Phase
from tests import test_train_cli

place = test_train_cli.place
ROOT = Path(__file__).parents[2]
QUICK = [*test_train_cli.QUICK, "--graphs", "graphs.jsonl", "--threads", "1", "--checkpoint-every", "2"]
PER_UPDATE = 128
"""Decisions of one update of reinforcement."""


def train(*arguments: str, code: int = 0) -> None:
    assert train_agent.main(list(arguments)) == code


def begin(name: str, *flags: str, updates: int = 5, code: int = 0) -> Path:
    train("--name", name, *QUICK, "--timesteps", str(PER_UPDATE * updates), *flags, code=code)
    return Path("runs") / name


def resume(name: str, *, updates: int = 7, code: int = 0) -> Path:
    train("--resume", "--name", name, "--timesteps", str(PER_UPDATE * updates), code=code)
    return Path("runs") / name


def content(run: Path) -> dict[str, str]:
    """Digest of each file of a run."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def outcome(run: Path) -> tuple[list[dict[str, Any]], str]:
    """What a run has led to: its metrics, without what the clock decides, and the digest of its policy."""
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    rows = [{key: value for key, value in row.items() if key not in (WALL_S, SPEED)} for row in rows]
    return rows, content(run)["policy.safetensors"]


def checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/*"))


def refused(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    """Checks that going on with a run is refused in one line, and that nothing in it is changed."""
    run = Path("runs") / name
    before = content(run)
    capsys.readouterr()
    resume(name, code=2)
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1
    assert content(run) == before


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Writes a checkpoint anew with other content, checksum included."""
    tensors, state = read_tensors(path, FORMAT)
    change(tensors, state)
    write_tensors(path, FORMAT, tensors, state)


KILLED = """
import os, signal, sys
from pathlib import Path
from agent.training import run_folder
from agent.training.config import TrainConfig

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before":
    run_folder.write_json_atomic = kill
config = TrainConfig.from_json(__import__("json").loads(sys.argv[2]), "test")
with run_folder.opened(Path("runs/one"), config, resume=False):
    kill()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_before_or_after_the_configuration_is_written_wedges_no_name(
    place: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    settings = {"name": "one", "graphs": "graphs.jsonl", "timesteps": PER_UPDATE}
    settings |= {key.replace("-", "_"): value for key, value in test_train_cli.SMALL.items()}
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, when, json.dumps(settings)], env=os.environ | {"PYTHONPATH": str(ROOT)}
    )
    assert killed.returncode == -signal.SIGKILL
    if when == "before":
        train("--resume", "--name", "one", code=2)
        assert "there is no run 'one'" in capsys.readouterr().err
        run = begin("one", updates=1)
    else:
        begin("one", code=2)
        assert "go on with it by --resume" in capsys.readouterr().err
        run = resume("one", updates=1)
        assert "runs/one holds no checkpoint yet; it starts anew" in capsys.readouterr().err
    assert json.loads((run / "result.json").read_text())["finished"]


@pytest.mark.parametrize("put", [shutil.copytree, shutil.move])
def test_a_run_is_where_it_was_put(place: Path, put: Callable[[Path, Path], object]) -> None:
    original = begin("original")
    before = content(original)
    put(original, Path("runs") / "other")
    worst = {"best": [9.0, 0]}
    changed(checkpoints(Path("runs/other"))[-1], lambda _, state: state.update(worst))
    other = resume("other")
    assert content(original) == (before if put is shutil.copytree else {})
    assert json.loads((other / "policy.json").read_text())["config"]["name"] == "other"
    assert [row["training/iteration"] for row in outcome(other)[0]] == [1, 2, 3, 4, 5, 6, 7]


DIVERGING = {
    "imitation": ("--imitation-epochs", "3", "--search", "50", "--imitation-rate"),
    "on-policy imitation": ("--dagger-rounds", "2", "--dagger-rate"),
    "reinforcement": ("--learning-rate",),
}


@pytest.mark.parametrize("phase", DIVERGING)
@pytest.mark.parametrize("rate", ["1e6", "1e30"])
def test_a_training_that_diverges_is_no_success_and_keeps_what_was_good(
    place: Path, capsys: pytest.CaptureFixture[str], phase: str, rate: str
) -> None:
    good = () if phase == "imitation" else ("--imitation-epochs", "2", "--search", "50")
    flags = DIVERGING[phase]
    run = begin("bad", "--checkpoint-every", "1", *good, *flags, rate, code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    update = 3 if good else 1
    assert line.startswith(f"train_agent.py: training diverged in {phase}, update {update}: ")
    assert line.endswith(f"with a lower {flags[-1]} (now {float(rate):g})")
    result = json.loads((run / "result.json").read_text())
    assert result["finished"] is False
    assert line == f"train_agent.py: {result['failure']}"
    assert len(checkpoints(run)) == len(good[:2])
    for path in checkpoints(run):
        assert all(np.isfinite(tensor).all() for tensor in load_file(path).values())
    if good:
        load_policy(run)
        before = content(run)
        resume("bad", code=1)
        assert line == capsys.readouterr().err.splitlines()[-1]
        kept = [name for name in before if name.startswith(("checkpoints", "policy", "metrics"))]
        assert {name: content(run)[name] for name in kept} == {name: before[name] for name in kept}


def fill(network: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(value)


def fill_policy(value: float) -> Callable[[Phase], None]:
    return lambda phase: fill(phase.state.policy, value)


def fill_average(phase: Phase) -> None:
    """Takes effect from the second update on, as the first copies the weights."""
    fill(phase.state.averaged_network, math.nan)


@pytest.mark.parametrize(
    ("where", "method", "spoil", "update", "found"),
    [
        (OnPolicyImitation, "learn", fill_policy(math.nan), 1, "the weights are not finite"),
        (OnPolicyImitation, "learn", fill_policy(1e38), 1, "the weights are not finite"),
        (OnPolicyImitation, "learn", fill_average, 2, "the averaged weights are not finite"),
        (OnPolicyImitation, "learn", fill_policy(1e30), 1, "the policy's scores are not finite"),
        (MaskablePPO, "train", lambda ppo: fill(ppo.policy, 1e30), 1, "the policy's scores are not finite"),
        (
            MaskablePPO,
            "train",
            lambda ppo: ppo.logger.record("train/value_loss", math.nan),
            1,
            "the value loss",
        ),
        (MaskablePPO, "_setup_learn", lambda ppo: fill(ppo.policy, 1e30), 1, "the policy's scores are not"),
    ],
)
def test_weights_of_no_use_are_kept_nowhere(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
    spoil: Callable[[Any], None],
    update: int,
    found: str,
) -> None:
    real = getattr(where, method)

    def spoilt(learner: Any, *arguments: Any, **named: Any) -> Any:
        result = real(learner, *arguments, **named)
        spoil(learner)
        return result

    monkeypatch.setattr(where, method, spoilt)
    rounds = update if where is OnPolicyImitation else 0
    run = begin("bad", "--checkpoint-every", "1", "--dagger-rounds", str(rounds), code=1)
    assert f"update {update}: {found}" in capsys.readouterr().err
    assert len(checkpoints(run)) == update - 1
    assert not (run / "policy.safetensors").exists()


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 16
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


def foreign(path: Path) -> None:
    save_file({"x": np.zeros(3)}, path)


DAMAGES = [truncated, flipped, emptied, foreign]


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
    assert f"goes on from {before.name}" in line
    assert outcome(run) == expected
    again = load_file(newest)
    assert all(np.array_equal(again[name], tensor) for name, tensor in weights.items())


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_run_whose_checkpoints_are_all_damaged_is_refused(
    place: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    for path in checkpoints(begin("damaged")):
        damage(path)
    refused(capsys, "damaged", "00000005.safetensors: ")


def test_a_run_whose_checkpoints_are_gone_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    finished, stopped = begin("finished", updates=2), begin("stopped", updates=3)
    (stopped / "result.json").unlink()
    for run, updates in ((finished, 2), (stopped, 3)):
        shutil.rmtree(run / "checkpoints")
        refused(capsys, run.name, f"holds no checkpoint, but {updates} updates were made")


def test_a_run_killed_before_its_first_checkpoint_starts_anew(
    place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    whole = begin("whole", updates=7)
    killed = begin("killed", updates=2)
    shutil.rmtree(killed / "checkpoints")
    (killed / "result.json").unlink()
    capsys.readouterr()
    resume("killed")
    assert "it starts anew" in capsys.readouterr().err
    assert outcome(killed) == outcome(whole)


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--seed", "1"), "is of a run with another setting of seed"),
        (("--hidden", "16"), "is of a run with another setting of hidden"),
        (("--cluster", "2xk80"), "is of a run with another setting of cluster"),
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
        lambda tensors, state: state.pop("run"),
        lambda tensors, state: state.pop("ppo"),
        lambda tensors, state: state["ppo"].pop("random"),
        lambda tensors, state: state.update(training=[1, 2]),
        lambda tensors, state: state.pop("best"),
        lambda tensors, state: state["ppo"]["env"].update(round=[99]),
        lambda tensors, state: state["ppo"]["env"].update(rng={}),
        lambda tensors, state: tensors.pop("random/torch"),
        lambda tensors, state: tensors.update({"optimizer/0/exp_avg": np.zeros((3, 3), np.float32)}),
        lambda tensors, state: tensors.update({"optimizer/999/step": np.zeros((), np.float32)}),
        lambda tensors, state: [tensors.pop(name) for name in list(tensors) if name.startswith("policy/")],
        lambda tensors, state: [tensors.pop(name) for name in list(tensors) if name.startswith("average/")],
    ],
)
def test_a_checkpoint_that_does_not_fit_is_refused(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    change: Callable[[dict[str, Any], dict[str, Any]], object],
) -> None:
    changed(checkpoints(begin("run"))[-1], change)
    refused(capsys, "run", "00000005.safetensors: does not fit this run")


@pytest.mark.parametrize("line", [b"\xff\n", b"[]\n", b'{"timesteps": 3}\n', b'{"timesteps"\n'])
def test_damaged_metrics_are_refused(place: Path, capsys: pytest.CaptureFixture[str], line: bytes) -> None:
    path = begin("damaged") / "metrics.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join([*lines[:2], line, *lines[3:]]))
    refused(capsys, "damaged", "runs/damaged/metrics.jsonl:3: ")


IMITATION = ("--imitation-epochs", "4", "--search", "50", "--demonstrations", "1")


def go_on_from_the_first_kept(run: Path) -> None:
    """Lets a run look as if it had been killed before its last checkpoint."""
    checkpoints(run)[-1].unlink()
    (run / "result.json").unlink()


@pytest.mark.parametrize("damage", [*DAMAGES, Path.unlink])
def test_damaged_demonstrations_are_searched_again_and_the_same_is_learned(
    place: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    run = begin("run", *IMITATION, updates=0)
    expected = outcome(run)
    go_on_from_the_first_kept(run)
    (run / "policy.safetensors").unlink()
    damage(run / "demonstrations.safetensors")
    capsys.readouterr()
    resume("run", updates=0)
    error = capsys.readouterr().err
    assert ("its placements are searched again" in error) == (damage is not Path.unlink)
    assert outcome(run) == expected


@pytest.mark.parametrize("damage", [truncated, Path.unlink])
def test_demonstrations_that_time_limited_cannot_be_searched_again(
    place: Path, capsys: pytest.CaptureFixture[str], damage: Callable[[Path], None]
) -> None:
    run = begin("run", *IMITATION, "--minutes", "10")
    damage(run / "demonstrations.safetensors")
    refused(capsys, "run", "runs/run/demonstrations.safetensors: ")


@pytest.mark.parametrize(
    "record",
    ["", "[]", '{"format": "placewalk.references/1", "evaluations": 10000}', '{"format": "other"}'],
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


def test_a_run_that_goes_on_is_not_done_until_it_ends(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = begin("run")

    def fail(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr("agent.contexts.local.TensorBoard.report", fail)
        resume("run", code=1)
    assert not (run / "result.json").exists()
    resume("run")
    assert json.loads((run / "result.json").read_text())["finished"]
    assert [row["training/iteration"] for row in outcome(run)[0]] == [1, 2, 3, 4, 5, 6, 7]
