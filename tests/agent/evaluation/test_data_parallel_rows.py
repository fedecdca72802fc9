"""Data parallelism as rows of an evaluation: beside the placements, but none of them."""

import pytest

from agent.evaluation.comparison.summary import summarise
from agent.evaluation.results import best_times
from agent.evaluation.run import evaluate
from envs.problem import Problem
from envs.simulator.data_parallel import simulate_data_parallel
from tests.agent.evaluation_cases import make_trial, quiet, rows_of, small_spec
from tests.agent.placement_cases import GB, make_cluster


def test_a_row_tells_the_seconds_per_batch_and_leaves_no_placement(tmp_path):
    spec = small_spec(placers=("single", "data-parallel"))
    trials = evaluate(spec, tmp_path, report=quiet).trials
    expected = simulate_data_parallel(Problem(spec.graphs[0], spec.clusters[0]))
    assert [trial.placer for trial in trials] == ["single", "data-parallel"] * 2
    assert trials[1].step_time_s == expected.seconds_per_batch < trials[0].step_time_s
    assert trials[1].lower_bound_s == trials[0].lower_bound_s
    single, parallel = rows_of(tmp_path)[:2]
    assert single["ratio_to_best"] == "1.0"
    assert float(parallel["ratio_to_best"]) == pytest.approx(trials[1].step_time_s / trials[0].step_time_s)
    assert {path.stem for path in (tmp_path / "placements").rglob("*.json")} == {"single"}
    again = evaluate(spec, tmp_path, report=quiet).trials
    assert again == trials


def test_it_is_never_the_best_placement_and_has_no_ratio_to_the_bound():
    placed = make_trial(placer="p", step_time_s=2.0)
    parallel = make_trial(placer="data-parallel", step_time_s=0.5)
    assert best_times([parallel, placed]) == {("g", "c"): 2.0}
    lines = {line.placer: line for line in summarise([placed, parallel])}
    assert (lines["p"].ratio_to_best, lines["p"].ratio_to_bound) == (1.0, 2.0)
    assert (lines["data-parallel"].ratio_to_best, lines["data-parallel"].ratio_to_bound) == (0.25, None)


def test_where_no_replica_has_the_memory_the_row_is_infeasible(tmp_path):
    spec = small_spec(
        placers=("data-parallel",), clusters=(make_cluster(2, memory_bytes=2.5 * GB, name="two"),)
    )
    trial = evaluate(spec, tmp_path, report=quiet).trials[0]
    assert not trial.feasible
    assert trial.ratio_to_single is None
