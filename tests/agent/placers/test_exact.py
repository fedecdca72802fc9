"""What is proven is so: all placements of small graphs are tried."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from agent.bounds.lower_bound import lower_bound_s
from agent.commands.evaluate import main
from agent.evaluation.config import EvaluationConfig
from agent.evaluation.inputs import make_spec
from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.placers.base import Budget, PlacerError, SearchState
from agent.placers.exact.relaxation import HORIZON_STEPS
from agent.placers.exact.solver import (
    MAX_OPS,
    MAX_PLACEMENTS,
    START_EVALUATIONS,
    enumerate_placements,
    n_placements,
    solve,
)
from envs.objective import TOTAL_S
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.op_graph import build_graph
from tests.agent.placement_cases import GB, found_by, make_cluster, optimum_s, random_problem, training_graph


@pytest.mark.parametrize("seed", range(12))
def test_the_optimum_of_a_small_graph_is_found_and_proven(seed: int) -> None:
    problem = random_problem(seed, n_ops=11, n_devices=3 if seed % 2 else 2)
    search = SearchState(problem, Budget(None, seconds=30.0))
    proof = solve(search)
    assert proof.is_optimal
    assert search.best_score == (0.0, pytest.approx(optimum_s(problem), rel=1e-9))
    assert proof.bound_s == pytest.approx(search.best_score[TOTAL_S], rel=1e-9)


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_without_a_proof_holds(seed: int) -> None:
    """The solver is stopped early; what it says then is true as well."""
    problem = random_problem(100 + seed, n_ops=13, n_devices=2)
    proof = solve(SearchState(problem, Budget(None, seconds=0.15)))
    assert proof.bound_s <= optimum_s(problem) * (1 + 1e-9)


def test_a_proven_bound_stands_in_every_row_of_the_graph(tmp_path: Path) -> None:
    """Links that are shared make the bound of the graph alone lower than what is proven."""
    problems = [random_problem(seed, n_ops=9, n_devices=2) for seed in range(8)]
    problem = next(each for each in problems if lower_bound_s(each) < 0.99 * optimum_s(each))
    spec = EvaluationSpec(
        graphs=(problem.graph,),
        clusters=(problem.cluster,),
        placers=("single", "exact"),
        budget=Budget(None, 20.0),
    )
    rows = evaluate(spec, tmp_path / "out", report=lambda done, total: None).trials
    assert len({row.lower_bound_s for row in rows}) == 1
    assert rows[0].lower_bound_s == pytest.approx(optimum_s(problem), rel=1e-9)


def test_devices_that_are_alike_are_told_apart_where_sending_goes_by_their_index() -> None:
    """Links out of a device are shared, and tensors go to three others in the order of their index."""
    for seed in range(6):
        problem = random_problem(200 + seed, n_ops=6, n_devices=4)
        alike = replace(problem.cluster, devices=make_cluster(4).devices, sharing="egress")
        alike = replace(alike, bytes_per_s=np.full((4, 4), 1e9), latency_s=np.zeros((4, 4)))
        problem = Problem(problem.graph, alike)
        search = SearchState(problem, Budget(None, seconds=20.0))
        proof = solve(search)
        assert proof.bound_s <= optimum_s(problem) * (1 + 1e-9)
        assert not proof.is_optimal or search.best_score[TOTAL_S] == pytest.approx(
            optimum_s(problem), rel=1e-9
        )


def test_steps_beyond_the_horizon_are_not_claimed_to_be_ruled_out() -> None:
    """Two units of 1 GB need two devices, and the tensor between them takes far longer than the ops."""
    ops = [{"name": name, "flops": 1e9, "resident_bytes": GB} for name in "ab"]
    graph = build_graph("slow", "", ops, [(0, 1e12, [1])])
    problem = Problem(graph, make_cluster(2, memory_bytes=1.5 * GB))
    assert optimum_s(problem) > HORIZON_STEPS * problem.scale_s
    proof = solve(SearchState(problem, Budget(None, seconds=5.0)))
    assert proof.bound_s <= HORIZON_STEPS * problem.scale_s
    assert not proof.is_optimal


def test_nothing_is_proven_where_nothing_fits() -> None:
    problem = Problem(training_graph(2, 2), make_cluster(2, memory_bytes=1.5 * GB))
    found = found_by("exact", problem, Budget(None, seconds=2.0))
    assert not found.feasible
    assert np.isfinite(found.lower_bound_s)


def test_scarce_memory_is_respected() -> None:
    """Three layers of 1 GB on two devices of 2.2 GB: no device can have all."""
    problem = Problem(training_graph(1, 3), make_cluster(2, memory_bytes=2.2 * GB))
    found = found_by("exact", problem, Budget(None, seconds=20.0))
    assert found.feasible
    assert found.step_time.total_s == pytest.approx(optimum_s(problem))


def test_a_model_that_takes_too_long_to_make_leaves_its_time_to_the_search(monkeypatch: Any) -> None:
    monkeypatch.setattr("agent.placers.exact.solver.BUILD_SHARE", 0.0)
    problem = Problem(load_family("ptb")[5], make_cluster(2))
    assert n_placements(problem) > MAX_PLACEMENTS
    found = found_by("exact", problem, Budget(START_EVALUATIONS + 500, seconds=60.0))
    assert found.evaluations == START_EVALUATIONS + 500
    assert found.lower_bound_s == 0.0


def test_what_is_not_proven_is_searched_with_the_evaluations_that_are_left() -> None:
    problem = random_problem(100, n_ops=60, n_devices=3)
    found_by("exact", problem, Budget(50_000, seconds=0.1))  # loads the solvers
    found = found_by("exact", problem, Budget(50_000, seconds=2.0))
    assert found.evaluations > START_EVALUATIONS
    assert 0.0 <= found.lower_bound_s < found.step_time.total_s


def test_a_large_graph_is_refined_alone() -> None:
    ops = [{"name": f"op{at}", "flops": 1e9} for at in range(MAX_OPS + 1)]
    problem = Problem(build_graph("g", "", ops, []), make_cluster(2))
    exact, refined = (found_by(name, problem).placement.device_of for name in ("exact", "refine"))
    assert np.array_equal(exact, refined)
    with pytest.raises(PlacerError, match=f"has {MAX_OPS + 1} ops; at most {MAX_OPS} are modelled"):
        solve(SearchState(problem, Budget(200)))


@pytest.mark.parametrize("seed", range(4))
def test_few_placements_are_all_tried(seed: int) -> None:
    problem = random_problem(300 + seed, n_ops=10, n_devices=2)
    count = n_placements(problem)
    found = found_by("exact", problem, count + START_EVALUATIONS)
    assert found.lower_bound_s == found.step_time.total_s == pytest.approx(optimum_s(problem), rel=1e-12)
    assert found.evaluations > count
    search = SearchState(problem, Budget(count - 1))
    assert not enumerate_placements(search)
    assert search.evaluations == count - 1


def test_trying_ends_early_where_the_seconds_will_not_last() -> None:
    ops = [{"name": f"op{at}", "flops": 1e9} for at in range(20)]
    problem = Problem(build_graph("g", "", ops, [(at, 1e6, [at + 1]) for at in range(19)]), make_cluster(2))
    search = SearchState(problem, Budget(None, seconds=0.05))
    assert not enumerate_placements(search)
    assert 0 < search.evaluations < n_placements(problem) / 2


def test_without_its_solver_it_says_so_and_is_left_out_by_default(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.placers.base.find_spec", lambda name: None)
    words = ["--families", "cifar10", "--placers", "exact", "--out", str(tmp_path / "out")]
    assert main(words) == 2
    assert "needs ortools; run pip install 'placewalk[exact]', or use another" in capsys.readouterr().err
    config = EvaluationConfig(families=("cifar10",), placers=("all",))
    assert "exact" not in make_spec(config)[0].placers
    assert "exact is left out: run pip install 'placewalk[exact]' for it" in capsys.readouterr().err
