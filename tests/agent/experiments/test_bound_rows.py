"""The table of bounds, on two graphs."""

import pytest

from agent.experiments.bounds import bound_row, main, table
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family


def test_a_row_compares_the_bounds_of_a_graph() -> None:
    row = bound_row(Problem(load_family("cifar10")[1], get_cluster("4xv100")), 200)
    assert row.gain > 1
    assert row.refined >= 1
    assert row.refined_free == pytest.approx(row.refined * row.gain)
    assert table([row]).splitlines()[-1].startswith("| all | 1 |")


def test_an_unknown_family_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--families", "none"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
