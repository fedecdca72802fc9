"""What a process takes: captures of large models, placements of large graphs, first calls of compiled loops.

Run as a program, it prints the seconds that first calls take: any of `simulate`, `decide` and `search`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget
from envs.placement.episodes import EpisodeBatch
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.io.graph_files import write_graphs
from tests.benchmarks.cases import layered_graph, v100s
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import ROOT, Figure

Record = Callable[[Figure], None]
N_OPS = 50_000
CAPTURE = """
import sys, time
began = time.perf_counter()
from graphs.capture.user_model import capture_model
graph = capture_model("graphs.families.large:" + sys.argv[1]).graph
answer = [graph.n_ops, time.perf_counter() - began]
"""
EVALUATE = """
import sys
from agent.commands.evaluate import main
answer = [main(sys.argv[1:])]
"""
PEAK = """
import json, resource, sys
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([*answer, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]))
"""


def answer_of(*words: str, **environment: str) -> list[float]:
    """The last line that a Python process prints, as JSON."""
    command = [sys.executable, *words]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | environment, capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout.splitlines()[-1])  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", ["gpt2_xl", "llama_7b", "seq2seq"])
def test_capture(stopwatch: Stopwatch, record: Record, model: str) -> None:
    answers: list[list[float]] = []
    stopwatch(lambda: answers.append(answer_of("-c", CAPTURE + PEAK, model)), rounds=1)
    n_ops, taken_s, peak_bytes = answers[0]
    group, allowed = "Captures of large models, torch's import included", "what one may take"
    record(Figure(group, f"{model}, {n_ops:,} ops", taken_s, "s", 90.0, allowed))
    record(Figure(group, f"{model}, peak memory", peak_bytes / 1e6, "MB", 2e3, allowed))


@pytest.mark.parametrize("placer", ["policy", "heft", "m-etf"])
def test_place(stopwatch: Stopwatch, record: Record, tmp_path: Path, placer: str) -> None:
    graphs = tmp_path / "graphs.jsonl.gz"
    write_graphs(graphs, [layered_graph(N_OPS)])
    words = ["--graphs", str(graphs), "--placers", placer, "--out", str(tmp_path / "out")]
    answers: list[list[float]] = []
    taken_s = stopwatch(lambda: answers.append(answer_of("-c", EVALUATE + PEAK, *words)), rounds=1)
    code, peak_bytes = answers[0]
    assert code == 0
    group, allowed = f"evaluate.py, a graph of {N_OPS:,} ops, 4 devices", "what it may take"
    record(Figure(group, placer, taken_s, "s", 20.0, allowed))
    record(Figure(group, f"{placer}, peak memory", peak_bytes / 1e6, "MB", 4e3, allowed))


@pytest.mark.parametrize("calls", ["simulate", "decide", "search", "simulate decide search"])
def test_first_call(stopwatch: Stopwatch, record: Record, tmp_path: Path, calls: str) -> None:
    words, taken_s = ["-m", __name__, *calls.split()], list[float]()
    stopwatch(lambda: taken_s.extend(answer_of(*words, NUMBA_CACHE_DIR=str(tmp_path))), rounds=2)
    compiling_s, loading_s = taken_s
    name = f"{calls}, loading from the cache"
    record(Figure("First calls in a process", name, loading_s, "s", compiling_s, "compiling, no cache"))


def simulate(problem: Problem) -> None:
    simulate_problem(problem, np.zeros(problem.graph.n_ops, dtype=np.int64))


def decide(problem: Problem) -> None:
    batch = EpisodeBatch([problem], 1)
    batch.begin(0, 0, 0, np.random.default_rng(0))
    batch.step(np.zeros(1, dtype=np.int64))


def search(problem: Problem) -> None:
    PLACERS["annealing"].place(problem, Budget(evaluations=1_000), np.random.default_rng(0))


def main() -> None:
    """Does what the arguments say, on a problem so small that compiling or loading is all it takes."""
    problem = Problem(layered_graph(10), v100s(2, "program"))
    began = time.perf_counter()
    for call in (simulate, decide, search):
        if call.__name__ in sys.argv[1:]:
            call(problem)
    print([time.perf_counter() - began])


if __name__ == "__main__":
    main()
