import json

from agent.experiments import finetuning
from agent.experiments.launcher import trials_of
from agent.training.metrics import SCORE, WALL_S
from graphs.io.graph_files import read_graphs


def test_the_curve_is_the_best_so_far(tmp_path):
    scores = [(5.0, 0.9), (12.0, 0.7), (14.0, None), (18.0, 0.8), (30.0, 0.6)]
    rows = [{WALL_S: second} | ({} if score is None else {SCORE: score}) for second, score in scores]
    (tmp_path / "metrics.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    assert finetuning.best_by(tmp_path, 4.0) is None
    assert [finetuning.best_by(tmp_path, second) for second in (10, 20, 40)] == [0.9, 0.7, 0.6]


def test_an_unknown_graph_is_refused_in_one_line(capsys):
    assert finetuning.main(["--graphs", "gpt-99"]) == 2
    assert capsys.readouterr().err == (
        "agent.experiments.finetuning: unknown graph 'gpt-99'; use FAMILY-NN of the benchmark set\n"
    )


def test_a_graph_is_trained_on_from_each_start(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    graph = finetuning.load_graphs(["gpt"])[1]
    pretrained, scratch = trials_of(finetuning.CONFIG, 2, finetuning.changes_of([graph]), [0])
    assert (pretrained.name, pretrained.config.init) == ("gpt-01-pretrained-seed-0", "pretrained")
    assert (scratch.name, scratch.config.init) == ("gpt-01-scratch-seed-0", "")
    assert [found.name for found in read_graphs(scratch.config.graphs[0])] == ["gpt-01"]


def test_the_table_and_the_rows_hold_the_same(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(finetuning, "references", lambda graph, cluster: {"heft": 0.75})
    monkeypatch.setattr(finetuning, "best_by", lambda folder, second: None if second < 20 else 1 / second)
    graph = finetuning.load_graphs(["gpt"])[1]
    rows = list(finetuning.to_rows([graph], 0.5))
    assert rows[:3] == [
        ("gpt-01", "pretrained", 10, None),
        ("gpt-01", "pretrained", 20, 0.05),
        ("gpt-01", "scratch", 10, None),
    ]
    assert rows[-1] == ("gpt-01", "heft", None, 0.75)
    assert finetuning.to_markdown(rows).splitlines()[0] == "| graph | from | 10 s | 20 s | heft |"
    assert finetuning.to_markdown(rows).splitlines()[2] == "| gpt-01 | pretrained |  | 0.050 | 0.750 |"
