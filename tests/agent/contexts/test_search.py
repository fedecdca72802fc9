"""A search proposes as many trials as were asked for, and knows those of before."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from agent.contexts.record import COMPLETE, FAILED, PRUNED, Attempt, Record, Trial
from agent.contexts.search import SearchPlan
from agent.contexts.study import Study
from agent.contexts.study_config import StudyConfig
from agent.training.config import TrainConfig

BASE = TrainConfig(name="s", families=("ptb",), context="search")
VARY = ("learning_rate=1e-4:1e-1:log", "hidden=4:32", "order=topo,topo+bfs")


def search(folder: Path, **settings: object) -> SearchPlan:
    config = replace(StudyConfig(vary=VARY, trials=4), **settings)
    return SearchPlan(Study("s", folder, BASE, config, Record(folder), ""))


def ended(trial: Trial, status: str, score: float | None) -> Attempt:
    attempt = Attempt("s", 1, trial.name, "search", trial.component, trial.mode, 0, status)
    return replace(attempt, best_score=score)


def test_a_stopped_search_goes_on_with_what_it_proposed(tmp_path: Path) -> None:
    plan = search(tmp_path)
    first, second = plan.next_trial(), plan.next_trial()
    assert first is not None
    assert second is not None
    assert 1e-4 <= first.config.learning_rate <= 1e-1
    assert 4 <= first.config.hidden <= 32
    assert first.config.order in (("topo",), ("topo", "bfs"))
    assert (first.config.context, first.mode) == ("local", "sampled")
    plan.ended(first, ended(first, COMPLETE, 0.5))

    again = search(tmp_path)
    assert [again.next_trial(), again.next_trial()] == [first, second]
    again.ended(first, ended(first, COMPLETE, 0.5))  # it knows
    again.ended(second, ended(second, FAILED, None))
    assert again.next_trial() is not None
    assert again.next_trial() is not None
    assert again.next_trial() is None


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
