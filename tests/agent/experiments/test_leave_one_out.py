from xml.etree import ElementTree

import pytest

from agent.experiments import leave_one_out as study
from agent.experiments.leave_one_out import (
    GROUPS,
    RACES,
    Race,
    compare,
    graphs_of,
    losses_to_markdown,
    to_markdown,
    to_svg,
)
from agent.experiments.statistics import LOWER_BOUND, Comparison
from graphs.io.graph_files import read_graphs

SVG = "{http://www.w3.org/2000/svg}"


def test_groups_share_no_family():
    families = [family for group in GROUPS.values() for family in group]
    assert len(families) == len(set(families))


def test_what_was_raced_is_in_the_table_and_the_figure(tmp_path, monkeypatch):
    from agent.commands import evaluate

    monkeypatch.chdir(tmp_path)
    folder = study.run_folder("study-cnn-0") / RACES[0].name
    words = [
        "--families",
        "resnet",
        "--placers",
        "single",
        "heft",
        "annealing",
        "--budget",
        "20",
        "--seeds",
        "2",
    ]
    assert evaluate.main([*words, "--out", str(folder)]) == 0
    table = to_markdown(["cnn", "ptb"], [0, 1], RACES[:1])
    rows = {line.split(" | ")[1]: line for line in table.splitlines() if line.startswith("| 10000")}
    compared = compare("cnn", [0], RACES[0])
    assert f"| {compared['heft'].centre:.3f} (" in rows["heft"]
    assert rows["annealing"].split(" | ")[2] == "1.000 (1.000 to 1.000)"
    assert "no fit: " in rows["single"]
    assert compared[LOWER_BOUND].centre < compared["heft"].centre
    assert rows["policy"].split(" | ")[2:4] == ["", ""]
    dots = ElementTree.fromstring(to_svg(["cnn"], [0], RACES[0])).iter(f"{SVG}circle")
    _of_legend, *of_placers = dots
    assert len(of_placers) == len({dot.get("cy") for dot in of_placers}) == len(compared)


def test_graphs_that_are_lost_are_named_the_worst_first(monkeypatch):
    ratios = {"won": [-0.1, -0.3], "level": [0.001], "b": [0.0, 0.1], "a": [0.2]}
    compared = Comparison({(graph, "4xv100"): logs for graph, logs in ratios.items()})
    monkeypatch.setattr(study, "compare", lambda group, *_: {"policy": compared} if group == "cnn" else {})
    head, _, *rows = losses_to_markdown(["cnn", "ptb"], [0], RACES[0]).splitlines()
    assert head == "| lost to annealing | cnn | ptb |"
    assert rows[0] == "| policy | 2 of 4: a 1.22, b 1.05 |  |"
    assert len(rows) == sum(placer.startswith("policy") for placer in RACES[0].placers)


def test_a_race_on_some_graphs_takes_them_from_every_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some = Race("some", ("heft",), (), every=5)
    flag, file = graphs_of("cnn", some)
    families = [graph.name for graph in read_graphs(file)]
    assert flag == "--graphs"
    assert families == [f"{family}-{number:02}" for family in GROUPS["cnn"] for number in (0, 5, 10)]
    assert some.title == "some, every 5th graph"
    assert graphs_of("cnn", RACES[0]) == ["--families", *GROUPS["cnn"]]


def test_a_figure_of_a_race_that_was_not_run_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert study.main(["--only", "table", "--groups", "cnn", "--figure", "some.svg"]) == 2
    assert capsys.readouterr().err == (
        "agent.experiments.leave_one_out: nothing to draw: "
        "'10000-evaluations' has not been run for all of cnn\n"
    )
    assert not (tmp_path / "some.svg").exists()


def test_an_unknown_group_is_wrong_input(capsys):
    with pytest.raises(SystemExit) as ended:
        study.main(["--groups", "mlp"])
    assert ended.value.code == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert "'mlp'" in said
    assert "cifar10" in said
