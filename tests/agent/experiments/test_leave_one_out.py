from xml.etree import ElementTree

import pytest

from agent.experiments import leave_one_out
from agent.experiments.launcher import trained
from agent.experiments.leave_one_out import (
    COLUMNS,
    GROUPS,
    SETTINGS,
    BenchmarkSetting,
    compare,
    graphs_of,
    slower_to_markdown,
    to_markdown,
    to_rows,
    to_svg,
)
from agent.experiments.statistics import LOWER_BOUND, Comparison
from graphs.io.graph_files import read_graphs

SVG = "{http://www.w3.org/2000/svg}"


def test_a_group_is_left_out_of_its_training_alone():
    changes = leave_one_out.changes_of(list(GROUPS))
    for group, changed in changes.items():
        assert set(GROUPS[group]).isdisjoint(changed["families"])
        others = [other for name, other in changes.items() if name != group]
        assert all(set(GROUPS[group]) < set(other["families"]) for other in others)


def test_groups_share_no_family():
    families = [family for group in GROUPS.values() for family in group]
    assert len(families) == len(set(families))


def test_what_was_evaluated_is_in_the_tables_and_the_figure(tmp_path, monkeypatch):
    from agent.commands import evaluate

    monkeypatch.chdir(tmp_path)
    folder = trained(leave_one_out.STUDY, "cnn", 0) / SETTINGS[0].name
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
    table = to_markdown(["cnn", "ptb"], [0, 1], SETTINGS[:1])
    rows = {line.split(" | ")[1]: line for line in table.splitlines() if line.startswith("| 10000")}
    compared = compare("cnn", [0], SETTINGS[0])
    assert f"| {compared['heft'].centre:.3f} (" in rows["heft"]
    assert rows["annealing"].split(" | ")[2] == "1.000 (1.000 to 1.000)"
    assert "out of memory: " in rows["single"]
    assert compared[LOWER_BOUND].centre < compared["heft"].centre
    assert rows["policy"].split(" | ")[2:4] == ["", ""]
    rows = list(to_rows(["cnn", "ptb"], [0, 1], SETTINGS[:1]))
    assert {row[2:4] for row in rows} == {(placer, "cnn") for placer in compared}
    heft = next(dict(zip(COLUMNS, row, strict=True)) for row in rows if row[2] == "heft")
    assert heft["ratio"] == compared["heft"].centre
    assert heft["low"] <= heft["ratio"] <= heft["high"]
    assert heft["graphs"] + heft["out_of_memory"] >= len(compared["annealing"].ratios)
    texts = [
        each.text for each in ElementTree.fromstring(to_svg(["cnn"], [0], SETTINGS[0])).iter(f"{SVG}text")
    ]
    assert sorted(each for each in texts if each in compared) == sorted(compared)


def test_graphs_on_which_the_policy_is_slower_are_named_the_worst_first(monkeypatch):
    ratios = {"won": [-0.1, -0.3], "level": [0.001], "b": [0.0, 0.1], "a": [0.2]}
    compared = Comparison({(graph, "4xv100"): logs for graph, logs in ratios.items()})
    monkeypatch.setattr(
        leave_one_out, "compare", lambda group, *_: {"policy": compared} if group == "cnn" else {}
    )
    head, _, *rows = slower_to_markdown(["cnn", "ptb"], [0], SETTINGS[0]).splitlines()
    assert head == "| slower than annealing | cnn | ptb |"
    assert rows[0] == "| policy | 2 of 4: a 1.22, b 1.05 |  |"
    assert len(rows) == sum(placer.startswith("policy") for placer in SETTINGS[0].placers)


def test_a_setting_of_some_graphs_takes_them_from_every_family(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    some = BenchmarkSetting("some", ("heft",), (), every=5)
    flag, file = graphs_of("cnn", some)
    families = [graph.name for graph in read_graphs(file)]
    assert flag == "--graphs"
    assert families == [f"{family}-{number:02}" for family in GROUPS["cnn"] for number in (0, 5, 10)]
    assert some.title == "some, every 5th graph"
    assert graphs_of("cnn", SETTINGS[0]) == ["--families", *GROUPS["cnn"]]


def test_a_figure_of_what_was_not_evaluated_is_refused_in_one_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert leave_one_out.main(["--only", "table", "--groups", "cnn", "--figure", "some.svg"]) == 2
    assert capsys.readouterr().err == (
        "agent.experiments.leave_one_out: nothing to draw: no evaluation '10000-evaluations' for all of cnn\n"
    )
    assert not (tmp_path / "some.svg").exists()


def test_an_unknown_group_is_wrong_input(capsys):
    with pytest.raises(SystemExit) as ended:
        leave_one_out.main(["--groups", "mlp"])
    assert ended.value.code == 2
    (message,) = capsys.readouterr().err.splitlines()
    assert "'mlp'" in message
    assert "cifar10" in message
