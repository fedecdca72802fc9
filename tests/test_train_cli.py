"""`train_agent.py` from outside: exit codes, files, interruptions."""

from __future__ import annotations

import json
import signal
from dataclasses import replace
from pathlib import Path

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from agent.commands import train as train_agent
from agent.contexts.local import closing_lines
from agent.learn.metrics import UPDATES
from agent.learn.train import Result
from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph
from tests import training_cases
from tests.faults.processes import TRAIN, Command
from tests.training_cases import QUICK

place = training_cases.place
TOY = "--name a --graphs graphs.jsonl"


def test_a_run_leaves_all_that_is_promised(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--name", "one", "--graphs", "graphs.jsonl", "--timesteps", "500", "--seed", "4", *QUICK]
    assert train_agent.main(arguments) == 0
    run = place / "runs" / "one"
    names = {path.name for path in run.iterdir()}
    assert {"config.json", "policy.safetensors", "policy.json", "metrics.jsonl", "result.json"} <= names
    assert any(name.startswith("events.out.tfevents") for name in names)
    assert list((run / "checkpoints").iterdir())
    config = json.loads((run / "config.json").read_text())
    assert config["seed"] == 4
    assert config["n_envs"] == 8
    assert {"versions", "git_commit"} <= config.keys()
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row[UPDATES] for row in rows] == [0, 1, 2, 3, 4]
    assert rows[-1]["timesteps"] == json.loads((run / "result.json").read_text())["timesteps"] == 512
    assert "tensorboard --logdir" in capsys.readouterr().out
    events = EventAccumulator(str(run)).Reload()
    assert {"to_device/score", "train/loss", "compare/to_annealing"} <= set(events.Tags()["scalars"])
    assert "metrics/text_summary" in events.Tags()["tensors"]

    assert train_agent.main(arguments) == 2
    assert "--resume" in capsys.readouterr().err

    again = ["--config", str(run / "config.json"), "--name", "two", "--timesteps", "128"]
    assert train_agent.main(again) == 0
    assert json.loads((place / "runs" / "two" / "config.json").read_text())["seed"] == 4

    assert train_agent.main(["--resume", "--name", "one", "--timesteps", "640"]) == 0
    rows = [json.loads(row) for row in (run / "metrics.jsonl").read_text().splitlines()]
    assert [row[UPDATES] for row in rows] == [0, 1, 2, 3, 4, 5]
    assert "nothing was left" not in capsys.readouterr().out
    assert train_agent.main(["--resume", "--name", "one"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == "nothing was left to train; to go on, resume with --timesteps above 640"


def test_a_run_that_minutes_cut_short_goes_on_for_the_minutes_given_on_resuming(place: Path) -> None:
    endless = ["--timesteps", str(10**8), "--minutes", "0.02"]
    assert train_agent.main(["--name", "cut", "--graphs", "graphs.jsonl", *endless, *QUICK]) == 0
    path = place / "runs" / "cut" / "result.json"
    results = [json.loads(path.read_text())]
    for more in (["--minutes", "0.02"], ["--minutes", "0.01"], []):
        assert train_agent.main(["--resume", "--name", "cut", *more]) == 0
        results.append(json.loads(path.read_text()))
    made = [result["timesteps"] for result in results]
    assert made[0] < made[1] < made[2] == made[3], "without minutes there is nothing left to do"
    assert all("of 100,000,000 decisions" in result["cut_short"] for result in results)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--name a", "give --families, --graphs or --model"),
        ("--graphs graphs.jsonl", "--name"),
        ("--name ../a --graphs graphs.jsonl", "'../a'"),
        ("--name a --graphs nowhere.jsonl", "nowhere.jsonl"),
        ("--name a --graphs \x1b.json", "\\x1b.json"),
        ("--name a --families mlp", "mlp"),
        (f"{TOY} --cluster 1xz80", "1xz80"),
        (f"{TOY} --order sideways", "sideways"),
        (f"{TOY} --encoder gnn", "gnn"),
        (f"{TOY} --start annealing", "use best, "),
        (f"{TOY} --init nowhere", "nowhere"),
        (f"{TOY} --reward measured", "give --model"),
        (f"{TOY} --context distributed", "torchrun --nproc-per-node N train_agent.py"),
        (f"{TOY} --seeds 2", "--seeds is for --context search"),
        (f"{TOY} --context grid --trials 3", "takes no --trials"),
        (f"{TOY} --context grid --vary x=1", "setting 'x'"),
        (f"{TOY} --context search", "needs a space"),
        (f"{TOY} --context ablation --without x", "'x'"),
        ("--name a --context grid --resume", "leave out --resume"),
        ("--name a --config grid.json", "give --context grid as a flag"),
        (f"{TOY} --device warp", "warp"),
        ("--name a --graphs large.json", "GB"),
        ("--name a --graphs idle.json", "nothing to place"),
        ("--name a --config graphs.jsonl", "graphs.jsonl"),
        ("--name a --config nowhere.json", "nowhere.json"),
        (f"{TOY} --config ", "is no regular file"),
        ("--name a --resume", "no run 'a'"),
        ("--name a --resume --seed 2", "--seed"),
        ("--name of-another-version --resume", "unknown key 'sight'; use name, families, "),
        ("--seed x", "--seed"),
        ("--unknown", "--unknown"),
        ("--mdp", "--mdp"),
    ],
)
def test_bad_input_is_one_line_and_nothing_written(
    place: Path, capsys: pytest.CaptureFixture[str], words: str, message: str
) -> None:
    large = [{"name": "w", "type": "parameter", "resident_bytes": 1e14}, {"name": "op"}]
    write_graphs(place / "large.json", [build_graph("large", "toys", large, [(0, 1, [1])])])
    idle = [{"name": "w", "type": "parameter"}]
    write_graphs(place / "idle.json", [build_graph("idle", "toys", idle, [])])
    (place / "grid.json").write_text('{"context": "grid", "graphs": ["graphs.jsonl"]}')
    (place / "runs" / "of-another-version").mkdir(parents=True)
    (place / "runs" / "of-another-version" / "config.json").write_text('{"sight": "local"}')
    before = {path.name for path in place.rglob("*")}
    try:
        code = train_agent.main(words.split(" "))
    except SystemExit as left:
        code = left.code
    error = capsys.readouterr().err
    assert code == 2
    assert message in error
    assert error.rstrip("\n").isprintable()
    assert {path.name for path in place.rglob("*")} == before


def test_runs_that_are_a_file_are_one_line(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (place / "runs").write_text("mine")
    assert train_agent.main(["--name", "run", "--graphs", "graphs.jsonl", *QUICK]) == 2
    assert capsys.readouterr().err.splitlines()[-1].startswith("train_agent.py: runs")
    assert (place / "runs").read_text() == "mine"


def test_a_run_in_use_is_refused(place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--name", "busy", "--graphs", "graphs.jsonl", "--timesteps", str(10**8), *QUICK]
    command = Command(TRAIN, words, place)
    command.wait_until((place / "runs" / "busy" / "metrics.jsonl").exists)
    assert train_agent.main(["--resume", "--name", "busy"]) == 2
    assert "another process" in capsys.readouterr().err
    command.send(signal.SIGKILL)
    command.wait()


def test_the_closing_lines_name_what_was_cut_short() -> None:
    result = Result(10, 2, 120.0, 0.5, 5, finished=True)
    assert closing_lines(result, Path("runs/x")).splitlines() == [
        "runs/x: 0.500 of one device's step time on graphs not held out",
        "reached after 5 decisions; trained for 2.0 minutes",
        "curves: tensorboard --logdir runs/x",
        "on one screen: http://localhost:6006/#custom_scalars",
    ]
    gained = replace(result, gains={"score": (0.61, 0.5), "held_out": (0.7, 0.65)})
    assert closing_lines(gained, Path("runs/x")).splitlines()[2:5] == [
        "by training:",
        "  score 0.610 -> 0.500",
        "  held out 0.700 -> 0.650",
    ]
    short = replace(result, cut_short="10 of 20 decisions")
    assert (
        closing_lines(short, Path("runs/x")).splitlines()[2] == "cut short by --minutes: 10 of 20 decisions"
    )


def test_help_comes_in_groups_and_begins_with_what_matters(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        train_agent.main(["--help"])
    lines = capsys.readouterr().out.splitlines()
    headings = [line.rstrip(":") for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert headings == [
        "options",
        "what matters most",
        "problems and decision process",
        "reinforcement (PPO)",
        "network",
        "evaluation",
        "run",
        "studies (--context search, ablation or grid)",
        "several machines (--context distributed, and studies)",
    ]
    main = lines[lines.index("what matters most:") : lines.index("problems and decision process:")]
    flags = [line.split()[0] for line in main if line.startswith("  --")]
    assert flags == [
        *("--name", "--families", "--graphs", "--model", "--cluster", "--order", "--minutes", "--timesteps"),
        *("--seed", "--init", "--config", "--resume", "--compile"),
    ]
    assert max(len(line) for line in lines) <= 80
