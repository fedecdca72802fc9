"""Toy graphs and the flags of quick trainings, for the tests of the training's command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from graphs.io.graph_files import write_graphs
from graphs.op_graph import build_graph

SMALL = {"hidden": 8, "rounds": 1, "n-envs": 8, "repeats": 4, "n-steps": 16, "batch-size": 64, "epochs": 1}
QUICK = [part for key, value in SMALL.items() for part in (f"--{key}", str(value))]


def write_toys(folder: Path) -> None:
    """Writes `graphs.jsonl`: eight small graphs of one family."""
    ops = [{"name": f"op{i}", "flops": 1e12} for i in range(12)]
    tensors = [(op, 1e3, [op + 3]) for op in range(9)]
    write_graphs(folder / "graphs.jsonl", [build_graph(f"g{i}", "toys", ops, tensors) for i in range(8)])


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory to run in, with graphs of one family."""
    write_toys(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path
