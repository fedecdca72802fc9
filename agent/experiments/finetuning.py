"""The worth of pretraining for one graph: training from the shipped policy against training from scratch.

`python -m agent.experiments.finetuning` trains and prints the table.

Both are trained for the same time on one graph by reinforcement alone, without a search to imitate, and are
evaluated by one greedy episode as they go. What is done is not repeated. The trainings are the trials of a
study, `runs/finetuning`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.experiments.launcher import exit_code, markdown_table, train_all, trained, trials_of
from agent.placers.base import PLACERS, Budget
from agent.policy.decoding import decode
from agent.policy.serialization import load_policy
from agent.training.metrics import SCORE, WALL_S
from agent.training.run_folder import RUNS
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_graphs
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError

CONFIG = Path(__file__).parent / "finetuning.json"
STUDY = "finetuning"
STARTS = {"pretrained": "pretrained", "scratch": ""}
"""Policy that a training starts from, by the name of the start."""
TIMES_S = (10, 20, 40, 60, 120, 180)
"""Seconds after which a training is looked at."""
COLUMNS = ("graph", "placed_by", "seconds", "ratio_to_single")
"""Columns of the rows as CSV."""
Row = tuple[str, str, int | None, float | None]
"""Graph, start or placer, seconds of training, best step time so far over the fastest single device's."""


def trial_of(graph: str, start: str) -> str:
    """Name of the trial of a graph and a start."""
    return f"{graph}-{start}"


def changes_of(graphs: Sequence[OpGraph]) -> dict[str, dict[str, Any]]:
    """Settings of the training on each graph from each start; graphs are written to files."""
    changes = {}
    for graph in graphs:
        file = RUNS / f"finetune-{graph.name}.json"
        if not file.exists():
            file.parent.mkdir(parents=True, exist_ok=True)
            write_graphs(file, [graph])
        for start, init in STARTS.items():
            changes[trial_of(graph.name, start)] = {"graphs": (str(file),), "init": init}
    return changes


def best_by(folder: Path, seconds: float) -> float | None:
    """Best greedy step time, over that of one device, that a training had found after some seconds."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [row[SCORE] for row in rows if SCORE in row and row[WALL_S] <= seconds]
    return min(found, default=None)


def references(graph: OpGraph, cluster: str) -> dict[str, float]:
    """Step times that other placers reach, over that of the fastest single device."""
    problem, rng = Problem(graph, get_cluster(cluster)), np.random.default_rng(0)
    found = {
        "heft": PLACERS["heft"].place(problem, Budget(10), rng),
        "annealing 10,000": PLACERS["annealing"].place(problem, Budget(10_000), rng),
        "annealing 100,000": PLACERS["annealing"].place(problem, Budget(100_000), rng),
    }
    shipped = simulate_problem(problem, decode(load_policy("pretrained"), problem)[0])
    return {"as shipped": shipped.total_s / problem.scale_s} | {
        name: each.step_time.total_s / problem.scale_s for name, each in found.items()
    }


def to_rows(graphs: Sequence[OpGraph], minutes: float) -> Iterator[Row]:
    """Makes rows of the step time that each start had reached after some seconds, and of other placers."""
    for graph in graphs:
        for start in STARTS:
            folder = trained(STUDY, trial_of(graph.name, start), 0)
            for second in TIMES_S:
                if second <= 60 * minutes:
                    yield graph.name, start, second, best_by(folder, second)
        for name, ratio in references(graph, "4xv100").items():
            yield graph.name, name, None, ratio


def to_markdown(rows: Sequence[Row]) -> str:
    """A line per graph and start: the best greedy step time after so many seconds, then other placers'."""
    times = sorted({seconds for _, _, seconds, _ in rows if seconds is not None})
    names = list(dict.fromkeys(name for _, name, seconds, _ in rows if seconds is None))
    ratio_of = {(graph, name, seconds): ratio for graph, name, seconds, ratio in rows}
    lines = [["graph", "from", *(f"{second} s" for second in times), *names]]
    for graph in dict.fromkeys(graph for graph, *_ in rows):
        others = [_cell(ratio_of[graph, name, None]) for name in names]
        for start in STARTS:
            curve = [_cell(ratio_of[graph, start, second]) for second in times]
            lines.append([graph, start, *curve, *others])
    return markdown_table(lines)


def _cell(ratio: float | None) -> str:
    return "" if ratio is None else f"{ratio:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the table; returns 0: done, 1: a training failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.finetuning", description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["nmt-03", "inception-03", "bert-03"], metavar="GRAPH")
    parser.add_argument("--minutes", type=float, default=3, help="of each training, on one core")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of the table (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        families = dict.fromkeys(name.rpartition("-")[0] for name in options.graphs)
        known = {graph.name: graph for graph in load_graphs(families)}
        for name in options.graphs:
            if name not in known:
                raise InputError(f"unknown graph '{name}'; use FAMILY-NN of the benchmark set")
        graphs = [known[name] for name in options.graphs]
        train_all(STUDY, "grid", trials_of(CONFIG, options.minutes, changes_of(graphs), [0]), jobs=1)
        rows = list(to_rows(graphs, options.minutes))
        print(to_markdown(rows))
        if options.rows:
            write_csv(options.rows, COLUMNS, rows)

    return exit_code("agent.experiments.finetuning", work)


if __name__ == "__main__":
    sys.exit(main())
