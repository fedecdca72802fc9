"""Placing by groups: reported op by op."""

from __future__ import annotations

import numpy as np
import pytest

from agent.evaluation.config import EvaluationError
from agent.evaluation.run import evaluate, placement_path
from agent.evaluation.spec import EvaluationSpec
from agent.placers.base import PLACERS, Budget
from agent.placers.coarse import place_coarsely
from envs.coarse_problem import coarse_problem
from envs.placement.files import read_placement
from envs.placement.placement import check_placement
from envs.simulator.simulate import simulate
from tests.agent.placement_cases import make_cluster, random_problem, training_graph


@pytest.mark.parametrize("name", PLACERS)
@pytest.mark.parametrize("seed", range(3))
def test_every_placer_places_groups_and_is_timed_op_by_op(name: str, seed: int) -> None:
    problem = random_problem(seed)
    coarse = coarse_problem(problem, 8)
    assert len(coarse.graph.units) <= 8 < len(problem.graph.units)
    found = place_coarsely(PLACERS[name], coarse, Budget(50), np.random.default_rng(0))
    check_placement(problem.graph, problem.cluster, found.placement)
    assert found.step_time.total_s == simulate(problem.graph, problem.cluster, found.placement).total_s
    assert found.evaluations <= 50


def test_an_evaluation_by_groups_reports_the_graph_itself(tmp_path) -> None:
    graph, cluster = training_graph(3, 2), make_cluster(2)
    spec = EvaluationSpec((graph,), (cluster,), ("heft", "annealing"), budget=Budget(100), coarsen=5)
    assert spec.to_json()["coarsen"] == 5
    for trial in evaluate(spec, tmp_path, report=lambda done, total: None).trials:
        placement = read_placement(placement_path(tmp_path, trial), graph, cluster)
        assert trial.step_time_s == simulate(graph, cluster, placement).total_s
        assert len(set(placement.device_of.tolist())) <= 2


def test_no_groups_are_refused() -> None:
    with pytest.raises(EvaluationError, match="graphs of 0 groups; give at least 1 to --coarsen"):
        EvaluationSpec((training_graph(),), (make_cluster(),), ("single",), coarsen=0)
