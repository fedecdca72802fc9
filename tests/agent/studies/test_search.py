"""A search proposes as many trials as were asked for, and knows those of before."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from agent.studies.record import COMPLETE, FAILED, PRUNED, Attempt, Record, RecordError, StudyTrial
from agent.studies.search import TrialProposals
from agent.studies.study_config import StudyConfig
from agent.studies.study_folder import Study
from agent.training.config import TrainConfig
from agent.training.metrics import ITERATION, SCORE

BASE = TrainConfig(name="s", families=("ptb",), context="search")
VARY = ("learning_rate=1e-4:1e-1:log", "hidden=4:32", "order=topo,topo+bfs")


def search(folder: Path, **settings: object) -> TrialProposals:
    config = replace(StudyConfig(vary=VARY, trials=4), **settings)
    return TrialProposals(Study("s", folder, BASE, config, Record(folder), ""))


def ended(trial: StudyTrial, status: str, score: float | None) -> Attempt:
    attempt = Attempt("s", 1, trial.name, "search", trial.component, trial.mode, 0, status)
    return replace(attempt, best_score=score)


def begun(plan: TrialProposals) -> StudyTrial:
    """The next trial, which the study's record knows."""
    trial = plan.next_trial()
    assert trial is not None
    plan._study.begin(trial)
    return trial


def test_a_stopped_search_goes_on_with_what_it_proposed(tmp_path: Path) -> None:
    """Whatever a file of Optuna holds."""
    (tmp_path / "optuna.db").write_bytes(b"damaged")
    plan = search(tmp_path)
    first, second = begun(plan), begun(plan)
    assert 1e-4 <= first.config.learning_rate <= 1e-1
    assert 4 <= first.config.hidden <= 32
    assert first.config.order in (("topo",), ("topo", "bfs"))
    assert (first.config.context, first.mode) == ("local", "sampled")
    plan.ended(first, ended(first, COMPLETE, 0.5))

    again = search(tmp_path)
    assert [again.next_trial(), again.next_trial()] == [first, second]
    again.ended(first, ended(first, COMPLETE, 0.5))
    again.ended(second, ended(second, FAILED, None))
    third, fourth = again.next_trial(), again.next_trial()
    assert third is not None
    assert fourth is not None
    drawn = [each.config.learning_rate for each in (first, second, third, fourth)]
    assert len(set(drawn)) == 4
    assert again.next_trial() is None


def test_what_was_not_drawn_from_the_space_is_refused(tmp_path: Path) -> None:
    begun(search(tmp_path))
    path = tmp_path / "attempts.jsonl"
    path.write_text(re.sub(r'hidden\\": \d+', 'hidden\\\\": 99', path.read_text()))
    with pytest.raises(RecordError, match="attempt 1 was not drawn from the space"):
        search(tmp_path)


def test_a_search_that_goes_on_gives_up_by_the_trials_of_before(tmp_path: Path) -> None:
    plan = search(tmp_path, trials=9)
    for _ in range(6):
        trial = begun(plan)
        folder = plan._study.trial_folder(trial)
        folder.mkdir(parents=True)
        (folder / "metrics.jsonl").write_text(json.dumps({ITERATION: 1, SCORE: 0.5}) + "\n")
    again = search(tmp_path, trials=9)
    for _ in range(6):
        known = again.next_trial()
        assert known is not None
        again.ended(known, ended(known, COMPLETE, 0.5))
    late = again.next_trial()
    assert late is not None
    assert again.watch(late, [(1, 0.8)])


@pytest.mark.parametrize(("prune", "expected"), [("median", True), ("never", False)])
def test_a_trial_that_is_worse_than_the_median_is_given_up(
    tmp_path: Path, prune: str, expected: bool
) -> None:
    plan = search(tmp_path, trials=9, prune=prune)
    for _ in range(6):
        trial = plan.next_trial()
        assert trial is not None
        assert not plan.watch(trial, [(1, 0.9), (2, 0.5)])
        plan.ended(trial, ended(trial, COMPLETE, 0.5))
    late = plan.next_trial()
    assert late is not None
    assert not plan.watch(late, [])
    assert not plan.watch(late, [(1, 0.8)])
    assert plan.watch(late, [(1, 0.8), (2, 0.8)]) == expected
    assert not plan.watch(late, [(1, 0.8), (2, 0.8)])  # nothing new
    plan.ended(late, ended(late, PRUNED, 0.8))
