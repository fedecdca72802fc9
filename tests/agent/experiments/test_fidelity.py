"""The command: its table of steps, and what wrong input is told."""

import csv
import json

import pytest

from agent.experiments.fidelity import __main__ as fidelity
from agent.experiments.fidelity import answer, placements
from agent.experiments.fidelity.models import GraphCache
from graphs.op_graph import build_graph


@pytest.fixture
def steps(tmp_path, monkeypatch):
    """A folder with one measured step of a model whose graph is one op."""
    folder = tmp_path / "steps"
    (folder / "Tesla_T4").mkdir(parents=True)
    (folder / "Tesla_T4" / "bert_large-inf-512-8.json").write_text(json.dumps({"e2e_latency": 694.5}))
    graph = build_graph("one", "", [{"name": "a", "flops": 1e12}], [])
    monkeypatch.setattr(GraphCache, "workload", lambda cache, workload: graph)
    return folder


def test_a_row_per_step_is_written(steps, tmp_path, capsys):
    out = tmp_path / "out"
    assert fidelity.main(["--steps", str(steps), "--out", str(out)]) == 0
    assert "| Tesla_T4 | 1 |" in capsys.readouterr().out
    with (out / "steps.csv").open() as file:
        (row,) = csv.DictReader(file)
    assert {"device", "name", "predicted_s", "measured_s", "roofline_s", "error", "n_ops"} <= row.keys()
    assert (row["device"], row["name"]) == ("Tesla_T4", "bert_large-inf-512-8")
    assert float(row["measured_s"]) == pytest.approx(0.6945)
    assert float(row["error"]) == pytest.approx(float(row["predicted_s"]) / 0.6945 - 1)
    assert not (out / "classes.csv").exists()


def test_an_unknown_device_is_refused_in_one_line(steps, tmp_path, capsys):
    (steps / "Tesla_T4").rename(steps / "Voodoo2")
    assert fidelity.main(["--steps", str(steps), "--out", str(tmp_path / "out")]) == 2
    error = capsys.readouterr().err
    assert "Voodoo2" in error
    assert error.count("\n") == 1


def test_a_folder_without_steps_is_refused_in_one_line(tmp_path, capsys):
    assert fidelity.main(["--steps", str(tmp_path), "--out", str(tmp_path / "out")]) == 2
    assert "holds no measured steps" in capsys.readouterr().err


def test_placements_are_compared_on_graphs_the_policy_has_not_seen(steps, tmp_path, monkeypatch, capsys):
    """The shipped policy keeps every fourth graph of a family from its training."""
    ops = [{"name": "a", "flops": 1e12}, {"name": "b", "flops": 1e12}]

    def capture(family, seed, *, detailed):
        return build_graph(f"{family}-{seed:02d}", family, ops, [(0, 8, [1])])

    monkeypatch.setattr(placements, "capture_draw", capture)
    monkeypatch.setattr(placements, "FAMILIES", {"ptb": 9})
    out = tmp_path / "out"
    flags = ["--placements", "2xk80", "placeto-k80:2", "--evaluations", "20", "--per-family", "2"]
    assert fidelity.main(["--steps", str(steps), "--out", str(out), *flags]) == 0
    assert "| 2xk80 to placeto-k80:2 | heft | 2 of 2 |" in capsys.readouterr().out
    with (out / "placements.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [row["placer"] for row in rows] == [*answer.PLACED_BY, *answer.PLACED_BY]
    assert {row["graph"] for row in rows} == {"ptb-03", "ptb-07"}
