"""The search of orders of actions: the best of all orders of small pipelines, never worse than schedules."""

from __future__ import annotations

from dataclasses import replace
from itertools import permutations, product

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget, SearchState
from agent.placers.pipeline.equal import balanced
from agent.placers.pipeline.orders import neighbour, pattern, search_actions, starts
from envs.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import LETTERS, device_actions, is_order
from envs.problem import Problem
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph

COUNT = 3


def unequal(seed: int, n_devices: int, count: int, schedule: str = "searched") -> PipelineObjective:
    """A pipeline of stages of different seconds, on devices of different speeds."""
    rng = np.random.default_rng(seed)
    problem = Problem(random_training_graph(rng, 8), random_pipeline_cluster(rng, n_devices))
    return PipelineObjective(problem, Pipeline(schedule, count))


def every_order(count: int) -> list[str]:
    found = {"".join(word) for letters in ("FB", "FIW") for word in set(permutations(letters * count))}
    return sorted(word for word in found if is_order(word, count))


@pytest.mark.parametrize(("seed", "memory"), [(0, 2.0), (1, 1.0), (2, 0.95), (4, 1.0)])
def test_search_finds_the_best_of_all_orders(seed: int, memory: float) -> None:
    pipelined = unequal(seed, 2, COUNT)
    search = SearchState(pipelined, Budget(1))
    cuts = balanced(search, range(2))
    stages = pipelined.stages(cuts)
    words = tuple(pattern(COUNT, 2 - rank, None) for rank in range(2))
    peak_bytes = pipelined.pipelined.simulate(replace(stages, actions=words)).peak_bytes
    pipelined = PipelineObjective(pipelined.problem.with_memory(memory * peak_bytes), pipelined.pipeline)
    orders = every_order(COUNT)
    assert len(orders) == 5 + 42  # the standard Young tableaux of 2 and of 3 rows
    best = min(pipelined.pipelined.score(replace(stages, actions=pair)) for pair in product(orders, repeat=2))
    search = SearchState(pipelined, Budget(1_500))
    search.score_cuts(cuts)
    search_actions(search, np.random.default_rng(0))
    assert search.best_score == pytest.approx(best)
    found = search.result()
    assert (found.evaluations, found.step_time.total_s) == (1_500, search.best_score[1])


@pytest.mark.parametrize("seed", range(6))
def test_searched_plans_are_never_slower_than_schedules_on_their_split(seed: int) -> None:
    pipelined = unequal(seed, 4, 6)
    found = PLACERS["refine"].place(pipelined, Budget(120), np.random.default_rng(0))
    assert found.evaluations <= 120
    assert found.step_time.fits
    for schedule in ("gpipe", "1f1b", "zero-bubble"):
        fixed = unequal(seed, 4, 6, schedule)
        try:
            step = fixed.simulate(replace(found.placement, actions=()))
        except PipelineError:  # zero-bubble has equal rounds
            continue
        assert not step.fits or found.step_time.total_s <= step.total_s
    again = PLACERS["refine"].place(pipelined, Budget(120), np.random.default_rng(0))
    assert again.placement.actions == found.placement.actions


@pytest.mark.parametrize(("schedule", "at"), [("1f1b", 0), ("gpipe", 1), ("zero-bubble", 3)])
def test_starts_are_the_orders_of_schedules(schedule: str, at: int) -> None:
    letters = LETTERS.replace("B", "I") if schedule == "zero-bubble" else LETTERS
    rows = device_actions(Pipeline(schedule, 8), 4)
    assert list(starts(4, 8))[at] == tuple("".join(letters[each.kind] for each in row) for row in rows)


def test_patterns_and_moves_are_orders() -> None:
    rng = np.random.default_rng(0)
    for count, depth, delay in product((1, 2, 5), (1, 3, 7), (None, 0, 2, 9)):
        assert is_order(pattern(count, depth, delay), count)
    words = next(starts(3, 4))
    seen = {words}
    for _ in range(2_000):
        words = neighbour(words, rng) or words
        assert all(is_order(word, 4) for word in words)
        seen.add(words)
    assert len(seen) > 500
    assert {"W" in word for each in seen for word in each} == {True, False}


@pytest.mark.parametrize("word", ["", "FB", "BFFB", "FFIWWI", "FIFI", "FBFIW", "FBFBR", "fbfb", "FFIIWWW"])
def test_what_is_no_order(word: str) -> None:
    assert not is_order(word, 2)
    assert is_order("FFIIWW", 2)
