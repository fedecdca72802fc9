"""What a process takes: captures of large models, and placements of large graphs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphs.io.graph_files import write_graphs
from tests.benchmarks.cases import layered_graph
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
