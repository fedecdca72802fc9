"""The command line of an evaluation, from the outside."""

import json

import pytest

from agent.commands import evaluate
from envs.cluster.files import cluster_to_json, read_cluster, write_cluster
from envs.cluster.named import GRAMMAR, NAMES
from envs.cluster.presets import PRESETS, get_cluster
from envs.placements.files import write_placement
from envs.placements.placement import single_device
from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from tests.agent.evaluation_cases import rows_of
from tests.faults.processes import EVALUATE, Command


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
    run(here, *words)
    assert rows_of(here / "out") == rows


TOY = "--graphs toy.json --placers single --out new"
MODEL = "--model slow:model --out new"


@pytest.mark.parametrize(
    ("words", "clause"),
    [
        ("--out new", "give --families, --graphs or --model"),
        ("--families cifar11 --out new", "cifar10"),
        ("--graphs broken.json --out new", "broken.json"),
        ("--graphs absent.json --out new", "absent.json"),
        ("--graphs \x07\udcff.json --out new", "\\x07\\udcff.json"),
        ("--graphs toy.json toy.json mine.json --out new", "mine.json"),
        ("--graphs toy.json", "the following arguments are required: --out"),
        (f"{TOY} --cluster 9xv9", "--list-clusters"),
        (f"{TOY} --cluster a\x1b[31m.json", "a\\x1b[31m.json"),
        ("--graphs toy.json --placers singel --out new", "unknown placer 'singel'"),
        ("--model time:time --placers singel --out new", "unknown placer 'singel'"),
        (f"{TOY} --orders zigzag", "dfs-preorder"),
        (f"{TOY} --budget 0", "at least 1"),
        (f"{TOY} --budget {'9' * 4000}", "has more than 18 digits"),
        (f"{TOY} --budget {'9' * 5000}", "invalid int value"),
        (f"{TOY} --jobs 0", "jobs is 0; use at least 1"),
        (f"{TOY} --jobs some", "--jobs"),
        (f"{TOY} --seconds nan", "finite"),
        (f"{TOY} --seeds 0", "at least 1"),
        (f"{TOY} --seeds 1000000000", "use at most 10000"),
        (f"{TOY} --wro\x1bng", "--wro\\x1bng"),
        (f"{TOY} --adapt", "give --measured K as well"),
        (f"{TOY} --export paper", "unknown export 'paper'"),
        ("--graphs huge.json --placers single --out new", "largest device"),
        (f"{TOY} --placements other.json", "graph 'other'"),
        (f"{TOY} --placements toy.json", "toy.json"),
        ("--graphs toy.json --placers policy --policy absent --out new", "absent"),
        (f"{TOY} --out occupied", "not empty"),
        (f"{TOY} --out toy.json", "no directory"),
        (f"{TOY} --out toy.json/out", "Not a directory"),
        (f"{TOY} --out /proc/out", "/proc/out"),
        (f"{TOY} --out {'x' * 300}", "File name too long"),
        ("--model nowhere --out new", "package.module:function"),
        ("--model nowhere:f --out new", "cannot import 'nowhere'"),
        ("--model json:absent --out new", "no function 'absent'"),
        ("--model json:loads --out new", "the function failed: TypeError"),
        ("--model time:time --out new", "return (module, inputs)"),
        (f"{MODEL} --out toy.json", "is no directory"),
        (f"{MODEL} --split 2", "split makes the microbatches of a pipeline"),
        (f"{MODEL} --pipeline 1f1b --batch-dim 1", "--batch-dim and --split-inputs say what --split cuts"),
        (f"{MODEL} --pipeline 1f1b --split-inputs x", "say what --split cuts; give --split"),
        (f"{TOY} --microbatches 2", "microbatches are those of a pipeline; give its schedule too"),
        (f"{TOY} --pipeline 1f1b --microbatches 0", "microbatches"),
        ("--pipeline auto --families gpt --out new", "auto chooses for one graph on one cluster, not for"),
        (f"{MODEL} --measured 2 --pipeline 1f1b", "pipelines are simulated, not measured"),
        (f"{MODEL} --measured 2 --cluster 99xcpu", "99 processes on"),
        (f"{MODEL} --measured 2 --cluster 4xv100", "CUDA devices"),
        (f"{MODEL} --export paper", "unknown export 'paper'"),
        (f"{TOY} --measured 1", "measuring needs a model"),
        (f"{TOY} --measured 1 --adapt", "measuring needs a model"),
        ("--model time:time --precision bf16 --measured 1 --out new", "--precision changes costs"),
        ("--model time:time --cluster 4xv100 --measured 1 --out new", "this machine has only"),
        ("--print-cluster 9xv9", "--list-clusters"),
    ],
)
def test_wrong_input_is_one_line_and_writes_nothing(here, capsys, monkeypatch, words, clause):
    """`slow` must not be imported: what no model makes right is refused before one is made."""
    (here / "slow.py").write_text("raise SystemExit('the model was made')")
    monkeypatch.chdir(here)
    before = {path.name for path in here.iterdir()}
    try:
        code = evaluate.main(words.split(" "))
    except SystemExit as left:
        code = left.code
    printed = capsys.readouterr()
    assert (code, printed.out) == (2, "")
    (line,) = (line for line in printed.err.splitlines() if " is measured for some seconds" not in line)
    assert clause in line
    assert line.isprintable()
    assert {path.name for path in here.iterdir()} == before


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
    presets, grammar, kinds = capsys.readouterr().out.rstrip().split("\n\n")
    lines, kinds = (dict(line.split(": ") for line in text.splitlines()) for text in (presets, kinds))
    assert list(lines) == list(PRESETS)
    assert list(kinds) == list(NAMES)
    assert GRAMMAR in grammar
    assert "e.g. 2x8xa100-sxm4@200g" in grammar
    assert kinds["h200"].startswith(
        "141 GB; calibrated in part (aiconfigurator, NeuSight, Vidur); NVSwitch, meas"
    )
    assert kinds["rtx4090"].endswith("uncalibrated (datasheet); PCIe 4.0, as measured between two L40S; @25g")
    assert lines["4xh100-sxm5"] == "4 x h100-sxm5-80gb of 79.3 GB; calibrated in part"
    assert lines["4xv100"] == "4 x v100 of 16 GB; uncalibrated"
    assert lines["4xv100-sxm2"] == "4 x v100-sxm2-16gb of 14.8 GB; calibrated; the default"


def test_help_shows_groups_and_defaults(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        evaluate.main(["--help"])
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines())) <= 80
    text = " ".join(printed.split())
    for part in ("graphs (at least one source):", "clusters:", "policy:", "run:", "(default: 4xv100-sxm2)"):
        assert part in text
    assert "evaluations per trial (default: 10000" in text


def test_the_table_is_there_before_the_report_is_drawn(here, monkeypatch, capsys):
    from agent.evaluation.report import page

    shown = []
    monkeypatch.setattr(page, "write_report", lambda *_, **__: shown.append(capsys.readouterr().out))
    graph = str(here / "toy.json")
    assert evaluate.main(["--graphs", graph, "--placers", "single", "--out", str(here / "out")]) == 0
    assert "toys on 4xv100-sxm2\n" in shown[-1]
