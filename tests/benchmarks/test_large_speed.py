"""Placing a graph of 50,000 ops from the command line: seconds and memory, each in a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from graphs.io.graph_files import write_graphs
from tests.benchmarks.cases import layered_graph
from tests.benchmarks.conftest import Stopwatch
from tests.benchmarks.figures import ROOT, Figure

N_OPS = 50_000
ALLOWED_S, ALLOWED_BYTES = 20.0, 4e9
"""What placing one graph may take."""
EVALUATE = """
import json, resource, sys
from agent.commands.evaluate import main
code = main(sys.argv[1:])
unit = 1 if sys.platform == "darwin" else 1024
print(json.dumps([code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit]))
"""


@pytest.mark.parametrize("placer", ["policy", "heft", "m-etf"])
def test_place(stopwatch: Stopwatch, record: Callable[[Figure], None], tmp_path: Path, placer: str) -> None:
    graphs = tmp_path / "graphs.jsonl.gz"
    write_graphs(graphs, [layered_graph(N_OPS)])
    done: list[subprocess.CompletedProcess[str]] = []

    def evaluate() -> None:
        words = ["--graphs", str(graphs), "--placers", placer, "--out", str(tmp_path / "out")]
        command = [sys.executable, "-c", EVALUATE, *words]
        done.append(subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True))

    taken_s = stopwatch(evaluate, rounds=1)
    code, peak_bytes = json.loads(done[0].stdout.splitlines()[-1])
    assert code == 0
    group, allowed = f"evaluate.py, a graph of {N_OPS:,} ops, 4 devices", "what it may take"
    record(Figure(group, placer, taken_s, "s", ALLOWED_S, allowed))
    record(Figure(group, f"{placer}, peak memory", peak_bytes / 1e6, "MB", ALLOWED_BYTES / 1e6, allowed))
