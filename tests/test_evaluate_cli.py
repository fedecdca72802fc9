"""The command line of an evaluation, from the outside."""

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.commands import evaluate
from envs.cluster.files import cluster_to_json, read_cluster, write_cluster
from envs.cluster.presets import PRESETS, get_cluster
from envs.placements.files import write_placement
from envs.placements.placement import single_device
from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from tests.faults.processes import EVALUATE, Command

ROOT = Path(__file__).parents[1]


def toy_graph(name="toy", resident_bytes=0.0):
    ops = [{"name": f"op{i}", "flops": 1e9 * (i + 1), "resident_bytes": resident_bytes} for i in range(6)]
    tensors = [(0, 1e6, [1, 2]), (1, 1e6, [3]), (2, 1e6, [4]), (3, 1e6, [5]), (4, 1e6, [5])]
    return build_graph(name, "toys", ops, tensors)


@pytest.fixture
def here(tmp_path):
    """A working directory with a graph, a placement of it, and broken files."""
    write_graphs(tmp_path / "toy.json", [toy_graph()])
    cluster = get_cluster("4xv100")
    write_placement(tmp_path / "mine.json", toy_graph(), cluster, single_device(toy_graph(), 0))
    write_placement(tmp_path / "other.json", toy_graph("other"), cluster, single_device(toy_graph(), 0))
    write_graphs(tmp_path / "huge.json", [toy_graph("huge", resident_bytes=1e12)])
    write_cluster(tmp_path / "pair.json", get_cluster("2xk80"))
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "occupied").mkdir()
    (tmp_path / "occupied" / "thesis.tex").write_text("x")
    return tmp_path


def run(here, *words):
    """What the command printed in a process of its own."""
    command = Command(EVALUATE, words, here)
    assert command.wait() == 0, command.output
    return command.output


def rows_of(folder):
    with (folder / "results.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_small_comparison_end_to_end(here):
    words = "--graphs toy.json --cluster 4xv100 pair.json --placements mine.json --budget 50 --seeds 2"
    words = [*words.split(), "--out", "out", "--placers", "single", "heft", "annealing"]
    printed = run(here, *words)
    rows = rows_of(here / "out")
    assert [(row["cluster"], row["placer"], row["seed"]) for row in rows] == [
        ("4xv100", "mine", "0"),
        *(
            (cluster, *run)
            for cluster in ("4xv100", "2xk80")
            for run in (("single", "0"), ("heft", "0"), ("annealing", "0"), ("annealing", "1"))
        ),
    ]
    files = {"results.csv", "summary.csv", "report.html", "placements", "settings.json", "journal.jsonl"}
    assert {path.name for path in (here / "out").iterdir()} == files | {".lock"}
    placement = json.loads((here / "out" / "placements" / "4xv100" / "toy" / "heft.json").read_text())
    assert placement["device_of"].keys() == {f"op{i}" for i in range(6)}
    assert "annealing" in printed
    run(here, *words, "--tensorboard")
    assert rows_of(here / "out") == rows
    assert list((here / "out" / "tensorboard" / "placers" / "heft").glob("events.out.tfevents.*"))


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        (("--out", "new"), "give --families, --graphs or --model"),
        (("--families", "cifar11", "--out", "new"), "cifar10"),
        (("--graphs", "broken.json", "--out", "new"), "broken.json"),
        (("--graphs", "absent.json", "--out", "new"), "absent.json"),
        (("--graphs", "toy.json", "toy.json", "mine.json", "--out", "new"), "mine.json"),
        (("--graphs", "toy.json", "--cluster", "9xv9", "--placers", "single", "--out", "new"), "4xv100"),
        (("--graphs", "toy.json", "--placers", "singel", "--out", "new"), "unknown placer 'singel'"),
        (("--model", "time:time", "--placers", "singel", "--out", "new"), "unknown placer 'singel'"),
        (
            ("--graphs", "toy.json", "--placers", "single", "--orders", "zigzag", "--out", "new"),
            "dfs-preorder",
        ),
        (("--graphs", "toy.json", "--placers", "single", "--budget", "0", "--out", "new"), "at least 1"),
        (("--graphs", "toy.json", "--jobs", "0", "--out", "new"), "jobs is 0; use at least 1"),
        (("--graphs", "toy.json", "--placers", "single", "--seconds", "nan", "--out", "new"), "finite"),
        (("--graphs", "toy.json", "--placers", "single", "--seeds", "0", "--out", "new"), "at least 1"),
        (("--graphs", "huge.json", "--placers", "single", "--out", "new"), "largest device"),
        (("--graphs", "toy.json", "--placements", "other.json", "--out", "new"), "graph 'other'"),
        (("--graphs", "toy.json", "--placements", "toy.json", "--out", "new"), "toy.json"),
        (("--graphs", "toy.json", "--placers", "policy", "--policy", "absent", "--out", "new"), "absent"),
        (("--graphs", "toy.json", "--placers", "single", "--out", "occupied"), "not empty"),
        (("--graphs", "toy.json", "--placers", "single", "--out", "toy.json"), "no directory"),
        (("--model", "nowhere", "--out", "new"), "package.module:function"),
        (("--model", "nowhere:f", "--out", "new"), "cannot import 'nowhere'"),
        (("--model", "json:absent", "--out", "new"), "no function 'absent'"),
        (("--model", "json:loads", "--out", "new"), "the function failed: TypeError"),
        (("--model", "time:time", "--out", "new"), "return (module, inputs)"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(here, capsys, monkeypatch, words, clause):
    monkeypatch.chdir(here)
    assert evaluate.main(words) == 2
    error = capsys.readouterr().err
    assert clause in error
    assert error.count("\n") == 1
    assert not (here / "new").exists()


@pytest.mark.parametrize(
    "words",
    [
        ("--graphs", "toy.json"),
        ("--out", "x", "--seeds", "two"),
        ("--out", "x", "--why"),
        ("--out", "x", "--jobs", "some"),
    ],
)
def test_flags_that_cannot_be_read_are_wrong_input(capsys, words):
    with pytest.raises(SystemExit) as leaving:
        evaluate.main(words)
    assert leaving.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("name", ["4xv100", "2xrtx3060", "2x4xa100", "placeto-k80:3"])
def test_a_printed_preset_reads_back_as_the_same_cluster(name, tmp_path, capsys):
    with pytest.raises(SystemExit) as leaving:
        evaluate.main(["--print-cluster", name])
    assert leaving.value.code == 0
    (tmp_path / "mine.json").write_text(capsys.readouterr().out)
    read, preset = read_cluster(tmp_path / "mine.json"), get_cluster(name)
    assert read.devices == preset.devices
    assert cluster_to_json(read) == cluster_to_json(preset)


def test_the_rows_of_a_printed_matrix_are_lines(capsys):
    with pytest.raises(SystemExit):
        evaluate.main(["--print-cluster", "2x4xa100"])
    rows = [line for line in capsys.readouterr().out.splitlines() if "25000000000" in line]
    assert len(rows) == 8
    assert rows[0].split("[")[1].startswith("300000000000, 300000000000, ")


def test_presets_are_listed_with_what_backs_their_costs(capsys):
    with pytest.raises(SystemExit) as leaving:
        evaluate.main(["--list-clusters"])
    assert leaving.value.code == 0
    lines = dict(line.split(": ") for line in capsys.readouterr().out.splitlines())
    assert list(lines) == list(PRESETS)
    assert lines["4xv100"] == "4 x v100 of 16 GB; uncalibrated"
    assert lines["4xv100-sxm2"] == "4 x v100-sxm2-16gb of 14.8 GB; calibrated; the default"


def test_an_unknown_preset_is_wrong_input(capsys):
    assert evaluate.main(["--print-cluster", "9xv9"]) == 2
    printed = capsys.readouterr()
    assert printed.err.count("\n") == 1
    assert "4xv100" in printed.err
    assert not printed.out


def test_help_shows_groups_and_defaults():
    narrow = os.environ | {"COLUMNS": "80"}
    done = subprocess.run(
        [sys.executable, "evaluate.py", "--help"],
        cwd=ROOT,
        env=narrow,
        capture_output=True,
        text=True,
        check=True,
    )
    help_text = " ".join(done.stdout.split())
    for heading in ("graphs (at least one source):", "clusters:", "policy:", "run:"):
        assert heading in help_text
    for default in (
        "evaluations per trial (default: 10000",
        "(default: 4xv100-sxm2)",
        "(default: pretrained)",
    ):
        assert default in help_text
    assert max(map(len, done.stdout.splitlines())) <= 80


def test_help_loads_no_torch():
    code = (
        "import sys, evaluate\ntry: evaluate.main(['-h'])\nexcept SystemExit: print('torch' in sys.modules)"
    )
    shown = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert shown.stdout.endswith("False\n")
    assert "--include-seen" in shown.stdout


def test_a_stopped_evaluation_goes_on(here):
    words = ["--graphs", "toy.json", "--placers", "single", "random", "--budget", "60000", "--seeds", "8"]
    words += ["--out", "out"]
    journal = here / "out" / "journal.jsonl"
    running = Command(EVALUATE, words, here)
    running.wait_until(lambda: journal.exists() and journal.read_text().count("\n") >= 2)
    running.send(signal.SIGINT)
    assert running.wait() == 1
    before = journal.read_text().splitlines()
    assert 2 <= len(before) < 9
    assert "run the same command again to resume" in running.output
    assert "Traceback" not in running.output
    run(here, *words)
    assert journal.read_text().splitlines()[: len(before)] == before
    assert len(rows_of(here / "out")) == 9


def test_a_model_of_the_users_own(here):
    (here / "my_models.py").write_text(
        "import torch\n"
        "def make():\n"
        "    return torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU()), (torch.zeros(4, 8),)\n"
    )
    run(here, "--model", "my_models:make", "--placers", "single", "--out", "out")
    (row,) = rows_of(here / "out")
    assert (row["graph"], row["family"], row["feasible"]) == ("make", "model", "true")


def test_the_table_is_there_before_the_report_is_drawn(here, monkeypatch, capsys):
    from agent.evaluation.report import page

    shown = []
    monkeypatch.setattr(page, "write_report", lambda *_, **__: shown.append(capsys.readouterr().out))
    graph = str(here / "toy.json")
    assert evaluate.main(["--graphs", graph, "--placers", "single", "--out", str(here / "out")]) == 0
    assert "toys on 4xv100-sxm2\n" in shown[-1]
