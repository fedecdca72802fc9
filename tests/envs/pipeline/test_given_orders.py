"""Pipelined steps whose order of actions is given: equal to a plain simulation, and bad orders."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.presets import get_cluster
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import LETTERS, device_actions
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.placements.files import placement_from_json, placement_to_json
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.system.errors import InputError
from tests.envs.pipeline.random_pipelines import (
    random_pipeline_cluster,
    random_stages,
    random_training_graph,
)
from tests.envs.pipeline.test_pipelined_step import check_is_plain


def random_words(rng: np.random.Generator, n_stages: int, count: int) -> tuple[str, ...]:
    """Draws the letters of stages, some of which split the backward pass, by running ready actions."""
    letters = ["FIW" if rng.random() < 0.6 else "FB" for _ in range(n_stages)]
    words = [""] * n_stages

    def is_ready(stage: int, kind: int) -> bool:
        at = words[stage].count(letters[stage][kind])
        before = words[stage].count(letters[stage][kind - 1]) if kind else count
        other = stage + 1 if kind else stage - 1
        waits = kind < 2 and 0 <= other < n_stages
        return at < before and not (waits and at >= words[other].count(letters[other][kind]))

    while True:
        ready = [(s, k) for s in range(n_stages) for k in range(len(letters[s])) if is_ready(s, k)]
        if not ready:
            return tuple(words)
        stage, kind = ready[int(rng.integers(len(ready)))]
        words[stage] += letters[stage][kind]


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), recomputes=st.sampled_from([0.0, 0.5]), mixes=st.booleans())
def test_given_orders_are_those_of_the_plain_simulation(seed: int, recomputes: float, mixes: bool) -> None:
    rng = np.random.default_rng(seed)
    n_ranks, count = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    problem = Problem(
        random_training_graph(rng, int(rng.integers(n_ranks, 12))),
        random_pipeline_cluster(rng, int(rng.integers(n_ranks, 6))),
    )
    stages = random_stages(rng, problem, n_ranks, 1)
    draws = [random_words(rng, n_ranks, count) for _ in range(n_ranks)]
    words = tuple(draws[stage][stage] for stage in range(n_ranks)) if mixes else draws[0]
    recomputed = tuple(np.flatnonzero(rng.random(n_ranks) < recomputes).tolist())
    check_is_plain(
        problem, Pipeline("searched", count), replace(stages, actions=words, recomputed=recomputed)
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_the_order_of_a_schedule_takes_the_time_of_the_schedule(schedule: str) -> None:
    rng = np.random.default_rng(0)
    problem = Problem(random_training_graph(rng, 12), random_pipeline_cluster(rng, 4))
    stages = random_stages(rng, problem, 3, 1)
    letters = LETTERS.replace("B", "I") if schedule == "zero-bubble" else LETTERS
    rows = device_actions(Pipeline(schedule, 6), 3)
    given = replace(stages, actions=tuple("".join(letters[each.kind] for each in row) for row in rows))
    expected = PipelinedProblem(problem, Pipeline(schedule, 6)).simulate(stages)
    searched = PipelinedProblem(problem, Pipeline("searched", 6))
    found = searched.simulate(given)
    assert found.total_s == expected.total_s
    assert found.peak_bytes.tolist() == expected.peak_bytes.tolist()
    if schedule == "zero-bubble":
        assert searched.simulate(stages).total_s == expected.total_s


def test_bad_orders_are_one_line() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    searched = PipelinedProblem(problem, Pipeline("searched", 2))
    stages = searched.chain.stages(np.array([0, 9]), np.array([1, 2]))
    for words, message in (
        (
            ("FFIW", "FBFB"),
            "^stage 0 has actions 'FFIW'; give 2 of F and of B, or of F, I and W, each F before",
        ),
        (("FBFB", "IFFIWW"), "^stage 1 has actions 'IFFIWW'; give 2"),
        (("FBFB",), "^1 orders of actions for 2 stages; give each stage one$"),
        (
            ("FBFB", "FFBB"),
            "devices wait for each other; give its stages other actions$",
        ),
    ):
        with pytest.raises(PipelineError, match=message):
            searched.simulate(replace(stages, actions=words))
    given = replace(stages, actions=("FFBB", "FBFB"))
    with pytest.raises(
        PipelineError, match=r"^the placement has an order of actions, which schedule '1f1b' does"
    ):
        PipelinedProblem(problem, Pipeline("1f1b", 2)).simulate(given)
    record = json.loads(json.dumps(placement_to_json(problem.graph, problem.cluster, given.placement)))
    assert record["actions"] == ["FFBB", "FBFB"]
    again = placement_from_json(record, "file").resolve(problem.graph, problem.cluster)
    assert stages_of(problem, again).actions == given.actions
    for value, message in (
        ({}, "file: actions: is an object; expected an array"),
        ([1], "file: actions: stage 0: is a"),
    ):
        with pytest.raises(InputError, match=message):
            placement_from_json(record | {"actions": value}, "file")
