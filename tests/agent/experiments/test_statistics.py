"""Step times over a baseline's: known answers."""

from pathlib import Path

import numpy as np
import pytest

from agent.experiments.statistics import (
    LOWER_BOUND,
    ROW_COLUMNS,
    Comparison,
    against_baseline,
    describe,
    interval,
    read_trials,
    row_cells,
    spread,
)
from tests.agent.trial_cases import trial, write_evaluation


def test_mean_and_interval_over_graphs_and_spread_over_trainings() -> None:
    ratios = {("a", "c"): [np.log(0.5), np.log(0.5)], ("b", "c"): [np.log(2.0), np.log(0.5)]}
    centre, low, high = interval(ratios)
    assert centre == pytest.approx(np.sqrt(0.5))
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(1.0)
    assert spread(ratios) == pytest.approx(0.5 / np.sqrt(2))
    assert spread({("a", "c"): [0.0]}) is None


def test_placers_are_compared_graph_by_graph_in_every_training(tmp_path: Path) -> None:
    one = write_evaluation(
        tmp_path / "one",
        trial("a", "annealing", 0.2),
        trial("a", "annealing", 0.8, seed=1),
        trial("a", "policy", 0.2),
        trial("b", "annealing", 0.5),
        trial("b", "policy", 1.0),
    )
    other = write_evaluation(tmp_path / "other", trial("a", "annealing", 0.5), trial("a", "policy", 1.0))
    compared = against_baseline([one, other], "annealing")
    assert np.exp(compared["policy"].ratios["a", "c"]) == pytest.approx([0.5, 2.0])
    assert np.exp(compared["policy"].ratios["b", "c"]) == pytest.approx([2.0])
    assert compared["policy"].centre == pytest.approx(np.sqrt(2.0))
    assert compared["policy"].wall_s == [0.5] * 3
    assert compared["annealing"].centre == 1.0
    assert np.exp(compared[LOWER_BOUND].ratios["b", "c"]) == pytest.approx([0.2])


def test_what_is_out_of_memory_is_counted_and_shown(tmp_path: Path) -> None:
    folder = write_evaluation(
        tmp_path / "one",
        trial("a", "annealing", 0.5),
        trial("a", "policy", 0.1, feasible=False),
        trial("b", "annealing", 0.5),
        trial("b", "policy", 0.5),
        trial("c", "annealing", 0.5, feasible=False),
        trial("c", "policy", 0.5),
    )
    compared = against_baseline([folder], "annealing")
    assert compared["policy"].out_of_memory == {("a", "c")}
    assert describe(compared["policy"]) == "1.000 (1.000 to 1.000; out of memory: 1)"
    assert describe(Comparison(out_of_memory={("a", "c")})) == "all out of memory"
    assert describe(None) == ""
    assert row_cells(compared["policy"]) == (1.0, 1.0, 1.0, None, 1, 1, 0.5)
    assert row_cells(Comparison(out_of_memory={("a", "c")})) == (None, None, None, None, 0, 1, None)
    assert len(ROW_COLUMNS) == len(row_cells(compared["policy"]))


def test_a_folder_without_an_evaluation_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"settings\.json"):
        read_trials(tmp_path)
