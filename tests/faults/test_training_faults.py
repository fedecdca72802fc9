"""Trainings that are killed, stopped by an error, copied or moved go on."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from agent.contexts import run_folder
from agent.learn.config import TrainConfig
from agent.learn.metrics import UPDATES
from tests import training_cases
from tests.faults.run_cases import PER_UPDATE, begin, changed, checkpoints, content, outcome, resume, train
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
