"""What pretraining is worth for one graph: training goes on from it, and starts from scratch.

`python -m agent.experiments.finetuning` trains and prints the table.

Both are trained for the same time on one graph by reinforcement alone, without a search to imitate, and are
judged by one greedy walk as they go. What is done is not repeated; runs are `runs/finetune-GRAPH-START`.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.command_line import OneLineParser
from agent.experiments.launcher import exit_code, markdown_table, train_run
from agent.placers import PLACERS, Budget
from agent.policy.decoding import decode
from agent.policy.serialization import load_policy
from agent.training.metrics import SCORE, WALL_S
from agent.training.run_folder import RUNS, run_folder
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_graphs
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph

CONFIG = Path(__file__).parent / "finetuning.json"
STARTS: dict[str, tuple[str, ...]] = {"pretrained": ("--init", "pretrained"), "scratch": ()}
"""Flags of a training from each start."""
TIMES_S = (10, 20, 40, 60, 120, 180)
"""When to look at a training."""


def name_of(graph: str, start: str) -> str:
    """Name of a run."""
    return f"finetune-{graph}-{start}"


def train_one(graph: OpGraph, start: str, minutes: float) -> None:
    """Train a policy on one graph from a start."""
    file = RUNS / f"finetune-{graph.name}.json"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        write_graphs(file, [graph])
    train_run(name_of(graph.name, start), CONFIG, minutes, ["--graphs", str(file), *STARTS[start]])


def best_by(folder: Path, seconds: float) -> float | None:
    """The least greedy step time, over that of one device, that a training had found after some seconds."""
    rows = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    found = [row[SCORE] for row in rows if SCORE in row and row[WALL_S] <= seconds]
    return min(found, default=None)


def references(graph: OpGraph, cluster: str) -> dict[str, float]:
    """What other ways of placing the graph reach, in units of one device's step time."""
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


def to_markdown(graphs: Sequence[OpGraph], minutes: float) -> str:
    """A row per graph and start: the best greedy step time after so many seconds."""
    times = [second for second in TIMES_S if second <= 60 * minutes]
    names = list(references(graphs[0], "4xv100"))
    header = ["graph", "from", *(f"{second} s" for second in times), *names]
    lines = [header]
    for graph in graphs:
        others = [f"{value:.3f}" for value in references(graph, "4xv100").values()]
        for start in STARTS:
            folder = run_folder(name_of(graph.name, start))
            curve = [best_by(folder, second) for second in times]
            cells = ["" if value is None else f"{value:.3f}" for value in curve]
            lines.append([graph.name, start, *cells, *others])
    return markdown_table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the table; returns 0: done, 1: a training failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.finetuning", description=__doc__)
    parser.add_argument("--graphs", nargs="+", default=["nmt-03", "inception-03", "bert-03"], metavar="GRAPH")
    parser.add_argument("--minutes", type=float, default=3, help="of each training, on one core")
    options = parser.parse_args(arguments)

    def work() -> None:
        families = dict.fromkeys(name.rpartition("-")[0] for name in options.graphs)
        known = {graph.name: graph for graph in load_graphs(families)}
        for name in options.graphs:
            if name not in known:
                raise ValueError(f"unknown graph '{name}'; use FAMILY-NN of the benchmark set")
        graphs = [known[name] for name in options.graphs]
        for graph in graphs:
            for start in STARTS:
                train_one(graph, start, options.minutes)
        print(to_markdown(graphs, options.minutes))

    return exit_code("agent.experiments.finetuning", work)


if __name__ == "__main__":
    sys.exit(main())
