import csv

import numpy as np
import pytest

from agent import study
from agent.study import GROUPS, against_rival, interval, spread, to_markdown


def test_groups_share_no_family():
    families = [family for group in GROUPS.values() for family in group]
    assert len(families) == len(set(families))


def test_mean_and_interval_over_graphs_and_spread_over_trainings():
    ratios = {("a", "c"): [np.log(0.5), np.log(0.5)], ("b", "c"): [np.log(2.0), np.log(0.5)]}
    centre, low, high = interval(ratios)
    assert centre == pytest.approx(np.sqrt(0.5))
    assert low == pytest.approx(0.5)
    assert high == pytest.approx(1.0)
    assert spread(ratios) == pytest.approx(0.5 / np.sqrt(2))
    assert spread({("a", "c"): [0.0]}) is None


def test_placers_are_compared_with_the_rival_graph_by_graph(tmp_path, monkeypatch):
    import evaluate

    monkeypatch.chdir(tmp_path)
    folder = study.run_folder("study-ptb-0") / "10000-evaluations"
    words = ["--families", "resnet", "--placers", "heft", "annealing", "--budget", "20", "--seeds", "2"]
    assert evaluate.main([*words, "--out", str(folder)]) == 0
    with (folder / "results.csv").open() as file:
        rows = list(csv.DictReader(file))
    graph = rows[0]["graph"]
    times = {
        placer: [
            np.log(float(row["step_time_s"]))
            for row in rows
            if (row["graph"], row["placer"]) == (graph, placer)
        ]
        for placer in ("heft", "annealing")
    }
    compared = against_rival([folder])
    assert compared["annealing"][graph, "4xv100"] == [0.0]
    expected = times["heft"][0] - np.mean(times["annealing"])
    assert compared["heft"][graph, "4xv100"] == [pytest.approx(expected)]
    assert "| 10000 evaluations | heft | " in to_markdown(["ptb"], [0])
