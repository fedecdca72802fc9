"""Pipelined steps whose order of actions is given: equal to a plain simulation, and bad orders."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import is_order
from envs.pipeline.simulate import PipelinedProblem
from envs.placement.files import placement_from_json, placement_to_json
from envs.problem import Problem
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
@given(seed=st.integers(0, 2**32 - 1), recomputes=st.sampled_from([0.0, 0.5]), swaps=st.booleans())
def test_given_orders_are_those_of_the_plain_simulation(seed: int, recomputes: float, swaps: bool) -> None:
    rng = np.random.default_rng(seed)
    n_ranks, count = int(rng.integers(1, 5)), int(rng.integers(1, 6))
    problem = Problem(
        random_training_graph(rng, int(rng.integers(n_ranks, 12))),
        random_pipeline_cluster(rng, int(rng.integers(n_ranks, 6))),
    )
    stages = random_stages(rng, problem, n_ranks, 1)
    words = [random_words(rng, n_ranks, count)[stage] for stage in range(n_ranks if swaps else 0)]
    words = tuple(words) if swaps else random_words(rng, n_ranks, count)
    recomputed = tuple(np.flatnonzero(rng.random(n_ranks) < recomputes).tolist())
    check_is_plain(
        problem, Pipeline("searched", count), replace(stages, actions=words, recomputed=recomputed)
    )


@pytest.mark.parametrize("schedule", ["1f1b", "gpipe", "zero-bubble"])
def test_orders_of_schedules_take_the_time_of_the_schedule(schedule: str) -> None:
    from envs.pipeline.schedules import LETTERS, WEIGHT, device_actions

    rng = np.random.default_rng(0)
    problem = Problem(random_training_graph(rng, 12), random_pipeline_cluster(rng, 4))
    stages = random_stages(rng, problem, 3, 1)
    pipeline = Pipeline(schedule, 6)
    letters = LETTERS.replace("B", "I") if schedule == "zero-bubble" else LETTERS
    words = tuple("".join(letters[each.kind] for each in row) for row in device_actions(pipeline, 3))
    assert any(str(WEIGHT) for word in words)
    expected = PipelinedProblem(problem, pipeline).simulate(stages)
    found = PipelinedProblem(problem, Pipeline("searched", 6)).simulate(replace(stages, actions=words))
    assert found.total_s == expected.total_s
    assert found.peak_bytes.tolist() == expected.peak_bytes.tolist()
    if schedule == "zero-bubble":
        assert PipelinedProblem(problem, Pipeline("searched", 6)).simulate(stages).total_s == found.total_s
