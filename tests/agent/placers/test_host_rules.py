"""Searches under the rules of the host thread: what they keep has the step time that a simulation gives."""

from dataclasses import replace

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget, SearchState
from envs.objective import TOTAL_S
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from tests.agent.placement_cases import make_cluster, random_problem, training_graph
from tests.envs.random_problems import with_slowdown

RULES = {
    "host": {"issue_s": 5e-4},
    "eager": {"copies": "eager"},
    "curve": {"n_half_bytes": 1e6},
    "graph": {"issue_s": 5e-3, "issue_per": "step"},
    "overlap": {"overlap_slowdown": 2.0},
    "all": {"issue_s": 5e-4, "copies": "eager", "n_half_bytes": 1e6, "sharing": "pair"},
}


def under(rules, cluster):
    slowdown = rules.get("overlap_slowdown", 1.0)
    others = {rule: value for rule, value in rules.items() if rule != "overlap_slowdown"}
    return with_slowdown(replace(cluster, schedule="program", **others), slowdown)


@pytest.mark.parametrize("rules", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("name", ["annealing", "local-search", "heft", "m-etf", "rollout"])
def test_the_best_score_is_a_simulated_step_time(name, rules):
    for seed in range(3):
        drawn = random_problem(seed)
        problem = Problem(drawn.graph, under(rules, drawn.cluster))
        search = SearchState(problem, Budget(evaluations=300))
        PLACERS[name].strategy(search, np.random.default_rng(seed))
        assert search.best_score[TOTAL_S] == step_time_s(problem, search.best)


def test_a_search_that_sees_eager_copies_ends_with_a_faster_eager_step():
    graph = training_graph(4, 2)
    stream = Problem(graph, make_cluster(2))
    eager = Problem(graph, replace(stream.cluster, copies="eager"))
    placer, budget = PLACERS["annealing"], Budget(evaluations=3_000)
    blind = placer.place(stream, budget, np.random.default_rng(0)).placement.device_of
    seeing = placer.place(eager, budget, np.random.default_rng(0)).placement.device_of
    assert step_time_s(eager, seeing) < step_time_s(eager, blind)
