"""Trainings of experiments: begun once, gone on with, never mistaken for others."""

import csv
import json
import subprocess
import sys
from pathlib import Path

import pytest

from agent.experiments import launcher
from tests.training_cases import SMALL, write_toys

CHANGES = {"narrow": {"hidden": 4}, "wide": {"hidden": 8}}


@pytest.fixture
def config(tmp_path, monkeypatch):
    """A configuration of quick trainings, in a folder to run in."""
    write_toys(tmp_path)
    monkeypatch.chdir(tmp_path)
    settings = {key.replace("-", "_"): value for key, value in SMALL.items()} | {"timesteps": 256}
    Path("quick.json").write_text(json.dumps({"graphs": ["graphs.jsonl"], **settings}))
    return Path("quick.json")


def train(config, changes, seeds, minutes=0):
    work = lambda: launcher.train_all(  # noqa: E731
        "study", "grid", launcher.trials_of(config, minutes, changes, seeds), jobs=2
    )
    return launcher.exit_code("experiment", work)


def rows():
    with Path("runs/study/trials.csv").open() as file:
        return [(row["trial"], row["status"]) for row in csv.DictReader(file)]


def test_what_is_trained_is_not_trained_again_and_seeds_can_be_added(config, capsys):
    assert train(config, CHANGES, [0]) == 0
    assert sorted(rows()) == [("narrow-seed-0", "complete"), ("wide-seed-0", "complete")]
    assert (launcher.trained("study", "wide", 0) / "policy.json").exists()
    assert train(config, {"wide": CHANGES["wide"]}, [0, 1]) == 0
    assert [trial for trial, _ in rows()][2:] == ["wide-seed-1"]
    capsys.readouterr()
    assert train(config, {"wide": {"hidden": 16}}, [0]) == 2
    error = capsys.readouterr().err
    assert "runs/study/trials/wide-seed-0: was started with other settings; remove" in error
    assert len(rows()) == 3


def test_a_training_that_fails_is_told_and_the_others_are_trained(config, capsys):
    changes = {"steep": {"learning_rate": 1e29}, **CHANGES}
    assert train(config, changes, [0]) == 1
    assert sorted(rows()) == [
        ("narrow-seed-0", "complete"),
        ("steep-seed-0", "failed"),
        ("wide-seed-0", "complete"),
    ]
    assert capsys.readouterr().err.endswith("experiment: runs/study: not all trainings ended well\n")


def test_an_evaluation_that_fails_is_one_line(capsys):
    def work():
        subprocess.run([sys.executable, "-c", "raise SystemExit(3)"], check=True)

    assert launcher.exit_code("experiment", work) == 1
    assert "ended with 3" in capsys.readouterr().err
