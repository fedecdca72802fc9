"""Intervals by the bootstrap: known answers, coverage, and what counts as a whole."""

import math

import numpy as np
import pytest

from agent.evaluation.comparison.intervals import Interval, crossed_interval, nested_interval


def interval_of(groups: list[list[list[float]]]) -> Interval:
    """The interval of logarithms by group, graph and seed."""
    return nested_interval(
        (str(group), graph, log)
        for group, graphs in enumerate(groups)
        for graph, seeds in enumerate(graphs)
        for log in seeds
    )


def test_equal_ratios_have_a_point() -> None:
    point = pytest.approx((0.5, 0.5, 0.5))
    assert interval_of([[[math.log(0.5)] * 3] * 4]) == point
    assert crossed_interval(np.full((2, 3), math.log(0.5))) == point


def test_graphs_of_one_seed_are_resampled() -> None:
    """Of two graphs, a quarter of the resamples hold one of them twice."""
    assert interval_of([[[0.0], [1.0]]]) == pytest.approx((math.exp(0.5), 1.0, math.e))
    assert crossed_interval(np.array([[0.0, 1.0]])) == pytest.approx((math.exp(0.5), 1.0, math.e))


def test_intervals_cover_the_mean_of_most_samples() -> None:
    rng = np.random.default_rng(1)
    nested, crossed = 0, 0
    for _ in range(40):
        logs = rng.normal(0.0, 0.2, (30, 1)) + rng.normal(0.0, 0.2, (30, 2))
        found = interval_of([logs.tolist()])
        assert found.low < found.mean < found.high
        assert found.mean == pytest.approx(math.exp(logs.mean()))
        nested += found.low <= 1.0 <= found.high
        # Seeds and graphs each shift all that they take part in.
        logs = rng.normal(0.0, 0.2, (12, 1)) + rng.normal(0.0, 0.2, 30)
        found = crossed_interval(logs)
        crossed += found.low <= 1.0 <= found.high
    assert nested >= 33
    assert crossed >= 33


def test_groups_count_as_wholes() -> None:
    """Many graphs of one group say little of another: the interval spans the means of both."""
    found = interval_of([[[0.0]] * 100, [[1.0]]])
    assert found.mean == pytest.approx(math.exp(1 / 101))
    assert found.low == pytest.approx(1.0)
    assert found.high == pytest.approx(math.e)


def test_seeds_of_a_graph_count_as_one_graph() -> None:
    """A graph with many seeds weighs as much as one with one; uneven counts are padded, not counted."""
    found = interval_of([[[1.0] * 50, [0.0]]])
    assert found == pytest.approx((math.exp(0.5), 1.0, math.e))


def test_an_interval_reads_as_a_cell() -> None:
    assert str(crossed_interval(np.zeros((2, 2)))) == "1.000 (1.000 to 1.000)"
