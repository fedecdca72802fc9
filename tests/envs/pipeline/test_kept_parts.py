"""Moves of a search are simulated to the last bit as if nothing had been kept of the plans before."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.placers.base import Budget, SearchState
from agent.placers.pipeline.equal import balanced
from agent.placers.pipeline.moves import neighbour, shifted
from envs.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import Stages
from envs.problem import Problem
from tests.benchmarks.cases import training_graph, v100s
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph

SCHEDULES = ("gpipe", "1f1b", "zero-bubble", "interleaved-1f1b:2")


def outcome(pipelined: PipelinedProblem, stages: Stages, until_s: float) -> object:
    """All that is simulated of a plan, the memory of its search first."""
    try:
        score = pipelined.score(stages, until_s=until_s)
        step = pipelined.simulate(stages)
    except PipelineError as error:
        return str(error)
    return score, step.total_s, step.busy_s.tolist(), step.peak_bytes.tolist(), step.actions


@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), places=st.sampled_from([1, 60, 10_000]))
def test_moves_are_simulated_as_if_nothing_was_kept(seed: int, places: int) -> None:
    rng = np.random.default_rng(seed)
    cluster = random_pipeline_cluster(rng, int(rng.integers(2, 6)))
    if rng.random() < 0.5:  # equal devices have one part
        alike = [replace(cluster.devices[0], name=each.name) for each in cluster.devices]
        cluster = replace(cluster, devices=tuple(alike))
    problem = Problem(random_training_graph(rng, int(rng.integers(6, 16)), branches=True), cluster)
    problem = problem.with_memory(np.full(cluster.n_devices, rng.exponential(8.0)))
    microbatches = int(rng.choice([1, 4, 6]))
    searches = [
        SearchState(PipelineObjective(problem, Pipeline(each, microbatches)), Budget(1))
        for each in SCHEDULES
        if each != SCHEDULES[-1] or problem_has_room(problem)
    ]
    plans = [balanced(search, range(min(2, search.pipelined.most_ranks))) for search in searches]
    for search in searches:
        search.can_recompute = True
        search.pipelined.pipelined._keeper._make(places)
    for _ in range(8):
        at = int(rng.integers(len(searches)))
        search = searches[at]
        plans[at] = neighbour(search, plans[at], rng) or plans[at]
        stages, until_s = search.pipelined.stages(plans[at]), float(rng.choice([np.inf, -np.inf]))
        fresh = PipelinedProblem(problem, search.pipelined.pipeline)
        expected = outcome(fresh, replace(stages, pieces=()), until_s)
        assert outcome(search.pipelined.pipelined, stages, until_s) == expected


def problem_has_room(problem: Problem) -> bool:
    """Says whether the graph has pieces for two stages on each of two devices."""
    return PipelinedProblem(problem, Pipeline("1f1b", 1)).chain.n_pieces >= 4


@pytest.mark.parametrize("by", [1, 7])
def test_a_moved_cut_makes_two_parts(by: int) -> None:
    problem = Problem(training_graph(400), v100s(8, "program", "pair"))
    search = SearchState(PipelineObjective(problem, Pipeline("1f1b", 8)), Budget(1))
    start = balanced(search, range(8))
    parts = search.pipelined.pipelined._keeper.parts
    search.pipelined.pipelined.score(search.pipelined.stages(start))
    assert parts.n[0] == 8
    cuts = shifted(search, start, 4, by)
    assert cuts is not None
    search.pipelined.pipelined.score(search.pipelined.stages(cuts))
    assert parts.n[0] == 10
    ranks = list(start.ranks)
    ranks[2], ranks[5] = ranks[5], ranks[2]
    search.pipelined.pipelined.score(search.pipelined.stages(start._replace(ranks=tuple(ranks))))
    assert parts.n[0] == 10  # the devices are equal
