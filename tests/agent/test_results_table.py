"""Several evaluations become one table."""

from __future__ import annotations

from pathlib import Path

import pytest

from agent.results import Trial
from agent.results_table import Evaluation, main, to_markdown


def trial(placer: str, ratio: float, *, family: str = "toy", seed: int = 0, feasible: bool = True) -> Trial:
    return Trial(
        graph=f"{family}-0",
        family=family,
        cluster="c",
        order="",
        placer=placer,
        seed=seed,
        step_time_s=ratio,
        feasible=feasible,
        evaluations=1,
        wall_s=0.5,
        lower_bound_s=0.1,
        single_s=1.0,
        seen=False,
    )


def test_policies_spread_over_trainings_and_searches_over_seeds_and_budgets() -> None:
    one = Evaluation(
        "a", 10, (trial("policy", 0.5), trial("annealing", 0.8), trial("annealing", 0.9, seed=1))
    )
    other = Evaluation("b", 1000, (trial("policy", 0.7), trial("annealing", 0.6)))
    lines = to_markdown([one, other]).splitlines()
    assert lines[0] == "| placer | toy (1) | all | s/graph |"
    assert lines[2] == "| policy | 0.600 ± 0.141 | 0.600 ± 0.141 | 0.5 |"
    assert lines[3] == "| annealing, 10 evaluations | 0.850 ± 0.071 | 0.850 ± 0.071 | 0.5 |"
    assert lines[4] == "| annealing, 1,000 evaluations | 0.600 | 0.600 | 0.5 |"


def test_what_does_not_fit_is_said() -> None:
    trials = (trial("single", 0.5, feasible=False), trial("heft", 0.5, family="other"))
    table = to_markdown([Evaluation("", None, trials)])
    assert "fits none" in table


def test_a_folder_without_an_evaluation_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert main([]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 2
