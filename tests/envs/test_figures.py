"""Figures of steps and graphs: bars, curves and nodes worked out by hand, and their sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.cluster.presets import get_cluster
from envs.figures import Bars, joined, rows_of, step_figure, svg_of, timeline
from envs.graph_figure import MOST_NODES, graph_figure, heights_of, nodes_of, places_of
from envs.objective import Objective
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline
from envs.placements.placement import Placement
from envs.problem import Problem
from graphs.dataset import load_family
from graphs.op_graph import build_graph
from tests.agent.placement_cases import make_cluster, random_problem, training_graph
from tests.envs.hand_made_problems import branches, chain_problem


def edges_of(figure, row: int = 0) -> np.ndarray:  # type: ignore[no-untyped-def]
    """Left and right ends of the bars of a figure in a row of its timeline, sorted, (n, 2)."""
    boxes = np.concatenate([patch.get_path().vertices.reshape(-1, 5, 2) for patch in figure.axes[0].patches])
    boxes = boxes[(boxes[:, 0, 1] - row > -0.5) & (boxes[:, 0, 1] - row < 0.5)]
    return np.array(sorted(zip(boxes[:, 0, 0], boxes[:, 2, 0], strict=True)))


def test_bars_and_curves_are_those_of_the_step_worked_out_by_hand() -> None:
    """`a` takes 2 s on `slow`, its output half a second on the link and a quarter more, `b` half a second."""
    objective, placement = Objective(chain_problem()), Placement(np.array([0, 1]))
    step = objective.simulate(placement)
    figure = step_figure(objective, placement, step, "chain")
    assert edges_of(figure).tolist() == [[0.0, 2000.0], [2000.0, 2500.0]]
    assert edges_of(figure, 1).tolist() == [[2750.0, 3250.0]]
    assert figure.axes[0].get_xlim() == figure.axes[1].get_xlim() == (0.0, 1000 * step.total_s)
    assert [label.get_text() for label in figure.axes[0].get_legend().get_texts()] == ["forward", "copies"]
    assert figure.axes[1].get_xlabel() == "time, ms"
    held = objective.memory(placement, 13)  # parts of a quarter of a second
    assert held.tolist() == [[14.0] * 10 + [10.0] * 3, [10.0] * 11 + [14.0] * 2]


@settings(max_examples=40, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), n_parts=st.integers(1, 40))
def test_all_that_takes_time_has_a_bar_and_curves_peak_where_devices_do(seed: int, n_parts: int) -> None:
    problem = random_problem(seed)
    placement = Placement(np.random.default_rng(seed).integers(0, 3, problem.graph.n_ops))
    step = (objective := Objective(problem)).simulate(placement)
    bars = timeline(objective, placement, step)
    bars.pop("copies", None)
    assert sum(len(each.device) for each in bars.values()) == np.sum(step.finish_s > step.start_s)
    assert max((each.end_s.max() for each in bars.values()), default=0.0) <= step.total_s
    held = objective.memory(placement, n_parts)
    np.testing.assert_allclose(held.max(axis=1), step.peak_bytes, rtol=1e-9)


def test_short_bars_are_joined_and_long_ones_are_not() -> None:
    starts, ends = np.array([3.0, 0.0, 0.2, 1.0, 2.0, 0.0]), np.array([3.1, 0.1, 0.3, 2.0, 3.0, 0.1])
    found = joined(Bars(np.array([0, 0, 0, 0, 0, 1]), starts, ends, np.full(6, -1)), 0.5)
    assert found.start_s.tolist() == [0.0, 1.0, 2.0, 3.0, 0.0]
    assert found.end_s.tolist() == [0.3, 2.0, 3.0, 3.1, 0.1]
    assert found.device.tolist() == [0, 0, 0, 0, 1]


def test_equal_devices_are_numbered_by_their_first_op() -> None:
    graph = training_graph(2, 1)
    device_of = np.full(graph.n_ops, 2)
    device_of[graph.op_names.index("loss")] = 0
    assert rows_of(Problem(graph, get_cluster("4xv100")), device_of).tolist() == [1, 2, 0, 3]
    assert rows_of(Problem(graph, make_cluster(3, slower=2.0)), device_of).tolist() == [0, 1, 2]


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "zero-bubble"])
def test_a_pipeline_has_a_bar_for_each_action(schedule: str) -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    objective = PipelineObjective(problem, Pipeline(schedule, 4))
    placement = objective.chain.stages(np.array([0, 9, 18]), np.array([3, 1, 0])).placement
    step = objective.simulate(placement)
    bars = timeline(objective, placement, step)
    counts = {kind: len(each.device) for kind, each in bars.items()}
    assert (counts["forward"], counts["optimizer"]) == (12, 3)
    assert (counts.get("weight gradients", 0) > 0) == (schedule == "zero-bubble")
    figure = step_figure(objective, placement, step, schedule)
    assert edges_of(figure)[0, 0] == 0.0  # the first stage is the first row
    assert {text.get_text() for text in figure.axes[0].texts} == set("0123")
    np.testing.assert_allclose(objective.memory(placement, 50).max(axis=1), step.peak_bytes, rtol=1e-9)


def test_figures_of_ten_thousand_ops_are_small() -> None:
    graph = training_graph(400, 9)
    assert graph.n_ops > 10_000
    problem = Problem(graph, make_cluster(8, 1e15))
    device_of = np.random.default_rng(0).integers(0, 8, graph.n_ops)
    objective, placement = Objective(problem), Placement(device_of)
    step = objective.simulate(placement)
    assert len(svg_of(step_figure(objective, placement, step, "large"))) < 1e6
    nodes = nodes_of(graph, device_of)
    assert 50 < len(nodes) <= MOST_NODES
    assert all(len(set(device_of[ops])) == 1 for ops in nodes)
    assert len(svg_of(graph_figure(problem, device_of, "large"))) < 1e6


def test_a_graph_is_drawn_in_layers_and_its_backward_pass_returns() -> None:
    graph = branches()
    assert nodes_of(graph, np.zeros(5, dtype=int)) == [[0], [1], [2], [3], [4]]
    assert places_of(graph).tolist() == pytest.approx([0.0, 0.0, 1 / 3, 2 / 3, 1.0])
    heights = heights_of(np.array([0, 0, 1, 2, 3]), np.zeros(5, dtype=int), graph.edges)
    assert sorted(heights.tolist()) == [-0.5, 0.0, 0.0, 0.0, 0.5]
    names = ("f", "g", "bg", "bf")
    ops = [
        {"name": name, "module": name[-1], "phase": "backward" if "b" in name else "forward"}
        for name in names
    ]
    there_and_back = build_graph("u", "", ops, [(at, 1.0, [at + 1]) for at in range(3)])
    assert places_of(there_and_back).tolist() == [0.0, 1.0, 1.0, 0.0]
