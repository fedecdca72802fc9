"""The table of bounds, on two graphs."""

from dataclasses import replace

import numpy as np
import pytest

from agent.experiments.bounds import bound_row, main, table, with_scarce_memory
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family


def test_a_row_compares_the_bounds_of_a_graph() -> None:
    row = bound_row(Problem(load_family("cifar10")[1], get_cluster("4xv100")), 200)
    assert row.gain > 1
    assert row.refined >= 1
    assert row.refined_free == pytest.approx(row.refined * row.gain)
    assert row.memory_gain == 1
    assert table([row]).splitlines()[-1].startswith("| all | 1 |")


def test_scarce_memory_raises_the_bound() -> None:
    problem = Problem(load_family("vit")[1], get_cluster("gpu+cpu"))
    scarce = with_scarce_memory(problem, 0.3)
    gpu, cpu = scarce.cluster.memory_bytes
    assert gpu == pytest.approx(0.3 * problem.footprint_bytes.sum())
    assert cpu > problem.footprint_bytes.sum()
    row = bound_row(scarce, 200)
    assert row.memory_gain > 1.1
    assert row.refined >= 1


def test_a_row_without_a_placement_does_not_count() -> None:
    row = bound_row(Problem(load_family("cifar10")[1], get_cluster("4xv100")), 200)
    lost = replace(row, refined=np.nan, refined_free=np.nan)
    assert table([row, lost]).splitlines()[-1].split("|")[6] == f" {row.refined:.3f} "
    assert "no placement" in table([lost])


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "much"])
def test_a_wrong_share_is_one_line(share: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(["--scarce", share])
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_family_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--families", "none"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
