"""Trainings that are killed, stopped by an error, copied or moved go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.learn.metrics import UPDATES
from tests import training_cases
from tests.faults.run_cases import PER_UPDATE, begin, changed, checkpoints, content, outcome, resume, train

place = training_cases.place
ROOT = Path(__file__).parents[2]

KILLED = """
import json, os, signal, sys
from pathlib import Path
from agent.contexts import run_folder
from agent.learn.config import TrainConfig

def kill(*_):
    os.kill(os.getpid(), signal.SIGKILL)

if sys.argv[1] == "before":
    run_folder.write_json_atomic = kill
config = TrainConfig.from_json(json.loads(sys.argv[2]), "test")
with run_folder.opened(Path("runs/one"), config, resume=False):
    kill()
"""


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_before_or_after_the_configuration_is_written_wedges_no_name(
    place: Path, capsys: pytest.CaptureFixture[str], when: str
) -> None:
    settings = {"name": "one", "graphs": "graphs.jsonl", "timesteps": PER_UPDATE}
    settings |= {key.replace("-", "_"): value for key, value in training_cases.SMALL.items()}
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
