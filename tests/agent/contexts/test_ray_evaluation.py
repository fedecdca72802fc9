"""Trials on a Ray cluster of this machine; it takes half a minute, so it runs when asked for."""

from __future__ import annotations

import os
from importlib.util import find_spec
from pathlib import Path

import pytest

from agent.commands import evaluate as command
from agent.evaluation.config import EvaluationConfig
from agent.evaluation.failures import Failure
from agent.evaluation.inputs import make_spec
from tests.faults.processes import trials_of
from tests.training_cases import place

__all__ = ["place"]
on_ray = pytest.mark.skipif(
    not os.environ.get("PLACEWALK_RAY_TESTS") or find_spec("ray") is None,
    reason="takes half a minute; set PLACEWALK_RAY_TESTS=1 and install the extra `ray`",
)
WORDS = "--graphs graphs.jsonl --placers random heft annealing --seeds 2 --budget 50"


def evaluated(out: str, *words: str) -> list[dict[str, str]]:
    assert command.main([*WORDS.split(), "--out", out, *words]) == 0
    return trials_of(Path(out))


@on_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_rows_are_those_of_one_process(place: Path) -> None:
    assert evaluated("ray", "--engine", "ray", "--jobs", "2") == evaluated("here")


@on_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_trial_whose_process_is_killed_is_tried_once_more(place: Path) -> None:
    """A search of a minute, in a process that is killed after 12 seconds, its start included."""
    from agent.contexts.ray_process import run_trials_on_ray

    settings = {"graphs": ("graphs.jsonl",), "placers": ("annealing", "heft"), "seeds": 1, "seconds": 60.0}
    spec, _ = make_spec(EvaluationConfig.from_json(settings, "test"))
    annealing, heft = (
        next(task for task in spec.tasks() if task.placer == placer) for placer in ("annealing", "heft")
    )
    found = dict(run_trials_on_ray(spec, [annealing, heft], jobs=2, timeout_s=12.0))
    assert not isinstance(found[heft], Failure)
    assert found[annealing] == Failure(spec.key(annealing), 2, "no result in 12 s")


def test_without_ray_nothing_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.contexts.engine.find_spec", lambda _: None)
    assert command.main([*WORDS.split(), "--out", "out", "--engine", "ray"]) == 2
    assert "pip install 'placewalk[ray]'" in capsys.readouterr().err
    assert not Path("out").exists()
