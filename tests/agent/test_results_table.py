"""Several evaluations become one table."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import pytest

from agent.results import Trial
from agent.results_table import Evaluation, main, make_table, to_markdown, to_svg


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


ONE = Evaluation("a", 10, (trial("policy", 0.5), trial("annealing", 0.8), trial("annealing", 0.9, seed=1)))
OTHER = Evaluation(
    "b", 1000, (trial("policy", 0.7), trial("annealing", 0.6), trial("policy", 0.9, family="new"))
)


def test_policies_spread_over_trainings_and_searches_over_seeds_and_budgets() -> None:
    lines = to_markdown(make_table([ONE, OTHER], ["toy"])).splitlines()
    assert (
        lines[0]
        == "| placer | toy (1) | new (1) | trained families (1) | families never seen (1) | s/graph |"
    )
    assert lines[2] == "| policy | 0.600 ± 0.141 | 0.900 | 0.600 ± 0.141 | 0.900 | 0.5 |"
    assert lines[3].startswith("| annealing, 1,000 evaluations | 0.600 |")
    assert lines[4].startswith("| annealing, 10 evaluations | 0.850 ± 0.071 | fits none | 0.850 ± 0.071 |")


def test_what_does_not_fit_is_said() -> None:
    trials = (
        trial("single", 0.5, feasible=False),
        trial("heft", 0.5, seed=1),
        trial("heft", 0.5, feasible=False),
    )
    table = to_markdown(make_table([Evaluation("", None, trials)], []))
    assert "| single | fits none |" in table
    assert "| heft | 0.500 (fits 50%) |" in table


def test_the_figure_has_a_bar_per_placer_and_column(tmp_path: Path) -> None:
    both = (trial("heft", 0.5), trial("heft", 0.25, family="new"))
    svg = to_svg(make_table([Evaluation("", None, both)], ["toy"]))
    root = ElementTree.fromstring(svg)
    widths = [float(bar.get("width", "0")) for bar in root.iter() if bar.get("height") == "11"]
    assert widths == [200.0, 100.0]


def test_a_folder_without_an_evaluation_is_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main([str(tmp_path)]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
