"""The table of bounds, on two graphs."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from agent.experiments.bounds import BoundRow, bound_row, families_table, with_scarce_memory
from agent.experiments.command import main
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_family


@pytest.fixture
def in_tmp_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def last_line(row: BoundRow, attribute: str) -> str:
    return families_table({"mean": ([row], attribute)}).splitlines()[-1]


def test_a_row_compares_the_bounds_of_a_graph() -> None:
    row = bound_row(Problem(load_family("cifar10")[1], get_cluster("4xv100")), 200)
    assert row.gain > 1
    assert row.refined >= 1
    assert row.refined_free == pytest.approx(row.refined * row.gain)
    assert row.memory_gain == 1
    assert last_line(row, "refined") == f"| all | 1 | {row.refined:.3f} |"


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
    assert families_table({"over": ([row, lost], "refined")}).endswith(f"| all | 2 | {row.refined:.3f} |")
    assert last_line(lost, "refined") == "| all | 1 |  |"


@pytest.mark.parametrize("share", ["0", "-1", "nan", "inf", "much"])
def test_a_wrong_share_is_one_line(share: str, capsys: pytest.CaptureFixture[str], in_tmp_path: None) -> None:
    try:
        code = main(["bounds_memory", "--families", "ptb", "--scarce", share])
    except SystemExit as left:
        code = left.code
    assert code == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_an_unknown_family_is_one_line(capsys: pytest.CaptureFixture[str], in_tmp_path: None) -> None:
    assert main(["bounds", "--families", "none"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
