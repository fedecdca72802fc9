"""Placers of pipelines: valid plans, optimal ones where all can be tried, and bad input in one line."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest

from agent.pipeline import annealing
from agent.pipeline.equal import cut_equally
from agent.pipeline.search import PipelineSearch
from agent.placers.base import PIPELINE_PLACERS, Budget, PlacementResult, names_of
from envs.cluster.presets import get_cluster
from envs.objective import PIPELINE
from envs.pipeline.chain import Cuts
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.problem import Problem
from graphs.dataset import load_family
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph
from tests.specification.pipelined_step import plain_step

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b:2", "zero-bubble")


def small(
    seed: int, schedule: str = "1f1b", n_devices: int = 3, n_layers: int = 7, *, branches: bool = False
) -> PipelineObjective:
    rng = np.random.default_rng(seed)
    cluster = random_pipeline_cluster(rng, n_devices)
    graph = random_training_graph(rng, n_layers, branches=branches)
    return PipelineObjective(Problem(graph, cluster), Pipeline(schedule, 6))


def place(name: str, objective: PipelineObjective, evaluations: int) -> PlacementResult:
    return PIPELINE_PLACERS[name].place(objective, Budget(evaluations), np.random.default_rng(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", names_of(PIPELINE))
def test_plans_are_valid_and_their_steps_are_those_of_the_plain_simulation(name: str, schedule: str) -> None:
    pipelined = small(3, schedule)
    found = place(name, pipelined, 50)
    stages = stages_of(pipelined.problem, found.placement)
    assert stages.stage_of.tolist() == found.placement.stage_of.tolist()
    plain = plain_step(pipelined.problem, pipelined.pipeline, stages)
    assert plain is not None
    assert found.step_time.total_s == pytest.approx(plain.total_s, rel=1e-9)
    assert found.evaluations <= 50


def every_plan(search: PipelineSearch, recomputes: bool) -> Iterator[Cuts]:
    """Yields all plans on three devices."""
    for n in range(1, 4):
        for ranks in permutations(range(3), n):
            for cuts in combinations(range(1, search.pipelined.chain.n_pieces), n - 1):
                for again in product((False, True), repeat=n if recomputes else 0):
                    yield Cuts((0, *cuts), ranks, again)


@pytest.mark.parametrize(
    ("seed", "schedule", "memory"), [(0, "1f1b", 1.0), (1, "gpipe", 0.6), (3, "1f1b", 0.6), (5, "1f1b", 0.6)]
)
def test_search_finds_the_best_of_all_plans(seed: int, schedule: str, memory: float) -> None:
    pipelined = small(seed, schedule, n_layers=6)
    search = PipelineSearch(pipelined, Budget(10**6))
    if memory < 1:
        alone = place("single", pipelined, 200)
        limits = np.full(3, memory * alone.step_time.peak_bytes.max())
        pipelined = PipelineObjective(pipelined.problem.with_memory(limits), pipelined.pipeline)
        search = PipelineSearch(pipelined, Budget(10**6))
    best = min(search.score_cuts(cuts) for cuts in every_plan(search, memory < 1))
    found = place("refine", pipelined, 4_000)
    over_bytes = np.maximum(found.step_time.peak_bytes - pipelined.problem.cluster.memory_bytes, 0).sum()
    assert (over_bytes, found.step_time.total_s) == pytest.approx(best)


def test_a_split_takes_less_memory_until_the_simulated_plan_fits() -> None:
    graph, cluster = load_family("gpt")[0], get_cluster("4xv100")
    ample = PipelineObjective(Problem(graph, cluster), Pipeline("1f1b", 8))
    need = place("pipedream", ample, 10).step_time.peak_bytes
    devices = tuple(replace(device, memory_bytes=0.8 * need.max()) for device in cluster.devices)
    scarce = PipelineObjective(Problem(graph, replace(cluster, devices=devices)), ample.pipeline)
    assert place("pipedream", scarce, 10).step_time.fits


def test_stages_of_equal_time_have_the_least_load_for_their_order() -> None:
    search = PipelineSearch(small(5, n_layers=9), Budget(1))
    seconds = search.pipelined.chain.seconds[:2].sum(axis=0)
    ranks = (2, 0, 1)

    def load(first: tuple[int, ...]) -> float:
        ends = (*first[1:], len(seconds))
        return max(
            seconds[a:b, d].sum() for a, b, d in zip(first, ends, ranks, strict=True)
        )  # greatest of any stage

    least = min(load((0, *cuts)) for cuts in combinations(range(1, len(seconds)), 2))
    assert load(search.pipelined.balanced(ranks).first) == pytest.approx(least)


def test_equal_shares_leave_no_stage_empty() -> None:
    assert cut_equally(np.array([0.0, 0.0, 9.0, 0.0, 0.0]), 4) == (0, 1, 2, 3)
    assert cut_equally(np.ones(8), 4) == (0, 2, 4, 6)


@pytest.mark.parametrize("seed", [1, 5])
def test_refine_starts_from_a_plan_that_fits_if_none_of_equal_time_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = small(seed, n_layers=9)
    graph, cluster = wide.problem.graph, wide.problem.cluster
    memory = graph.resident_bytes.sum() * np.array([2.0, 1.0, 0.2])
    devices = tuple(
        replace(device, memory_bytes=most) for device, most in zip(cluster.devices, memory, strict=True)
    )
    problem = Problem(graph, replace(cluster, devices=devices))
    pipelined = PipelineObjective(problem, replace(wide.pipeline, may_recompute=False))
    assert place("refine", pipelined, 8).step_time.fits
    monkeypatch.setattr(annealing, "PROGRAMME_S", np.inf)
    assert not place("refine", pipelined, 8).step_time.fits


@pytest.mark.parametrize("name", ["annealing", "refine", "single"])
def test_searches_end_before_their_seconds_are_spent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, simulate = [0.0], PipelinedProblem._run

    def simulate_for_a_second(*settings: Any) -> float:
        clock[0] += 1.0
        return simulate(*settings)

    monkeypatch.setattr(PipelinedProblem, "_run", simulate_for_a_second)
    budget = Budget(None, 12.0, lambda: clock[0])
    assert PIPELINE_PLACERS[name].place(small(0), budget, np.random.default_rng(0)).step_time.fits
    assert (9.0 if name != "single" else 3.0) <= clock[0] <= 12.0


def test_clusters_that_run_no_pipeline_are_refused() -> None:
    graph = load_family("gpt")[0]
    shared = PipelineObjective(Problem(graph, get_cluster("placeto-k80")), Pipeline("1f1b", 8))
    with pytest.raises(PipelineError, match="has schedule 'fifo'; a pipeline needs 'program'"):
        place("single", shared, 1)
