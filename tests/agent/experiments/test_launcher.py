"""Runs of experiments: begun once, gone on with, never mistaken for others."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.experiments import launcher

CONFIG = Path("some.json")


@pytest.fixture
def asked(tmp_path, monkeypatch):
    """The flags of the trainings that were begun."""
    commands = []
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: commands.append(command[3:]))
    return commands


def begin(name, minutes, *files):
    folder = launcher.run_folder(name)
    for file in ("config.json", *files):
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        (folder / file).write_text(json.dumps({"minutes": minutes}))


def end(name, **result):
    (launcher.run_folder(name) / "result.json").write_text(json.dumps(result))


def test_a_new_run_gets_the_flags_and_one_that_was_stopped_goes_on(asked):
    launcher.train_run("new", CONFIG, 2.5, ["--rounds", "1"])
    assert asked.pop()[:7] == ["--config", "some.json", "--threads", "1", "--minutes", "2.5", "--rounds"]
    begin("stopped", 2.5)
    launcher.train_run("stopped", CONFIG, 2.5, ["--rounds", "1"])
    assert asked.pop() == ["--resume", "--name", "stopped"]
    begin("done", 2.5)
    end("done", finished=True)
    launcher.train_run("done", CONFIG, 2.5, [])
    assert not asked


def test_a_run_that_diverged_is_not_done(asked):
    begin("diverged", 2.5)
    end("diverged", finished=False, failure="training diverged in imitation, update 3: the loss is nan")
    launcher.train_run("diverged", CONFIG, 2.5, [])
    assert asked.pop() == ["--resume", "--name", "diverged"]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"finished": "yes"}'])
def test_a_damaged_result_is_one_line(asked, capsys, text):
    begin("damaged", 2.5)
    (launcher.run_folder("damaged") / "result.json").write_text(text)
    assert launcher.exit_code("experiment", lambda: launcher.train_run("damaged", CONFIG, 2.5, [])) == 2
    error = capsys.readouterr().err
    assert "damaged/result.json: " in error
    assert error.count("\n") == 1
    assert not asked


def test_a_run_of_other_minutes_is_not_taken_for_this_one(asked, capsys):
    begin("short", 1.0)
    work = lambda: launcher.train_run("short", CONFIG, 3, [])  # noqa: E731
    assert launcher.exit_code("experiment", work) == 2
    folder = launcher.run_folder("short")
    message = f"experiment: {folder} was begun with --minutes 1; use that, or remove the folder\n"
    assert capsys.readouterr().err == message
    assert not asked


def test_a_training_that_fails_is_one_line(capsys):
    def work():
        subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)

    assert launcher.exit_code("experiment", work) == 1
    assert "ended with 3" in capsys.readouterr().err


def test_after_a_failure_no_training_is_begun():
    begun = []

    def train(run):
        begun.append(run)
        if run == 1:
            raise ValueError("no such family")

    with pytest.raises(ValueError, match="no such family"):
        launcher.side_by_side(train, range(5), 1)
    assert begun == [0, 1]
    launcher.side_by_side(begun.append, range(5, 8), 2)
    assert sorted(begun[2:]) == [5, 6, 7]
