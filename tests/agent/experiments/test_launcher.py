"""Trainings of experiments: begun once, gone on with, never mistaken for others."""

import csv
import json
from pathlib import Path

import pytest

from agent.evaluation.failures import Failure
from agent.evaluation.run import EvaluationResult
from agent.experiments import launcher
from agent.experiments.command import exit_code, main
from agent.studies.study_config import StudyConfig
from agent.studies.study_folder import open_study
from tests.agent.evaluation_cases import make_trial
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
    return exit_code(
        "experiment", lambda: launcher.train_all("study", config, minutes, changes, seeds, jobs=2)
    )


def rows():
    with Path("runs/study/trials.csv").open() as file:
        return [(row["trial"], row["status"]) for row in csv.DictReader(file)]


def test_what_is_trained_is_not_trained_again_and_seeds_can_be_added(config, capsys):
    assert train(config, CHANGES, 1) == 0
    assert sorted(rows()) == [("narrow-seed-0", "complete"), ("wide-seed-0", "complete")]
    assert (launcher.trained("study", "wide", 0) / "policy.json").exists()
    assert train(config, {"wide": CHANGES["wide"]}, 2) == 0
    assert [trial for trial, _ in rows()][2:] == ["wide-seed-1"]
    capsys.readouterr()
    assert train(config, {"wide": {"hidden": 16}}, 1) == 2
    error = capsys.readouterr().err
    assert "runs/study/trials/wide-seed-0: was started with other settings; remove" in error
    assert len(rows()) == 3


def test_a_training_that_fails_is_told_and_the_others_are_trained(config, capsys):
    changes = {"steep": {"learning_rate": 1e29}, **CHANGES}
    assert train(config, changes, 1) == 1
    assert sorted(rows()) == [
        ("narrow-seed-0", "complete"),
        ("steep-seed-0", "failed"),
        ("wide-seed-0", "complete"),
    ]
    assert capsys.readouterr().err.endswith("experiment: runs/study: not all trainings ended well\n")


def test_an_evaluation_with_a_failed_trial_is_one_line(tmp_path, monkeypatch, capsys):
    found = EvaluationResult([], [Failure(make_trial().key, 1, "no memory")])
    monkeypatch.setattr(launcher, "evaluate", lambda *_, **__: found)
    assert exit_code("experiment", lambda: launcher.evaluated(None, tmp_path)) == 1
    assert f"1 trials failed; see {tmp_path / 'failures.csv'}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["orders", "orders_equal_features", "orders_reinforcement", "leave_one_out"])
def test_an_experiment_of_trainings_begins_and_resumes_its_study(name, tmp_path, monkeypatch, capsys):
    def no_trials(base, *_):
        with open_study(base, StudyConfig()):
            return False

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launcher, "run_trials", no_trials)
    for _ in range(2):
        assert main([name]) == 1
        message = f"agent.experiments: runs/{name}: not all trainings ended well\n"
        assert capsys.readouterr().err == message
    assert (tmp_path / "runs" / name / "study.json").exists()
