"""The rows of published profiles, on one small graph."""

from __future__ import annotations

import numpy as np
import pytest

from agent.instances.profiles import SLOW, UNEQUAL, profile_cluster, profile_graph, profile_paths
from agent.lab.command import main
from agent.lab.pipeline_profiles import profile_row
from agent.pipelines.dynamic.placers import Rules, best_split, stage_costs
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem


def test_a_row_has_the_load_and_the_step_of_a_plan() -> None:
    graph = profile_graph(profile_paths()["pipedream_gnmt"])
    pipelined = PipelinedProblem(Problem(graph, profile_cluster(4, UNEQUAL)), Pipeline("1f1b", 8))
    row = profile_row(pipelined, UNEQUAL, "ideals", 10)
    split = best_split(stage_costs(pipelined), Rules(), (1, 2, 3, 4))
    assert split is not None
    assert row.max_load_s == pytest.approx(split.max_load_s)
    assert row.throughput_per_s == pytest.approx(8 / row.step_s)
    assert row.step_s > 8 * np.nansum(graph.seconds[SLOW]) / 6  # two devices of speed 2, two of speed 1
    assert row.fits


def test_inputs_take_no_time() -> None:
    graph = profile_graph(profile_paths()["pipedream_alexnet"])
    loads = [op for op in range(graph.n_ops) if graph.op_names[op] == "node1/forward"]
    assert graph.seconds[SLOW][loads] == 0
    assert np.count_nonzero(graph.seconds[SLOW] > 0) > 30


def test_an_unknown_graph_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["pipeline_profiles", "--graphs", "nothing"]) == 2
    assert "unknown graph 'nothing'; known are pipedream_alexnet" in capsys.readouterr().err
