"""The files that are handed over with a placement."""

from __future__ import annotations

import math
import os
from dataclasses import astuple, fields
from functools import lru_cache
from pathlib import Path

import numpy as np

from agent.placers.base import PLACERS, Budget
from agent.placing.handover.device_map import project
from agent.placing.handover.explain import WORTH_IT, explain
from agent.placing.handover.explain_text import explain_lines
from agent.placing.handover.tables import MemoryRow, OpRow, memory_rows, op_rows
from agent.placing.handover.trace import trace_events
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.granularity import graph_by_op
from graphs.io.graph_files import write_graphs
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_csv
from graphs.system.json_files import write_bytes_atomic, write_json_atomic
from graphs.system.numbers import in_ms

GRAPH = "graph.json.gz"
EVALUATIONS = 1_000
"""Placements by op that are tried."""


def write_handover(folder: Path, name: str, problem: Problem, device_of: IntArray) -> list[str]:
    """Writes all that is handed over with a placement, and returns lines that say what bounds its step.

    The files are `graph.json.gz` and, after the name of the placement, `.ops.csv`, `.memory.csv`,
    `.trace.json`, `.explain.txt` and, where ops have module paths, `.device_map.json`.

    Args:
        name: what the file names begin with.
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    graph, cluster = problem.graph, problem.cluster
    step = simulate_problem(problem, device_of)
    lines = explanation_lines(problem, device_of)
    write_graphs(folder / GRAPH, [graph])
    rows = op_rows(graph, cluster, device_of)
    write_csv(folder / f"{name}.ops.csv", [each.name for each in fields(OpRow)], map(astuple, rows))
    memory = memory_rows(cluster, step)
    write_csv(folder / f"{name}.memory.csv", [each.name for each in fields(MemoryRow)], map(astuple, memory))
    write_trace(folder / f"{name}.trace.json", problem, device_of)
    mapped: list[str] = []
    if any(graph.modules):
        by_module = project(problem, device_of)
        write_json_atomic(folder / f"{name}.device_map.json", dict(by_module.devices))
        mapped.append(str(by_module))
    write_bytes_atomic(folder / f"{name}.explain.txt", ("\n".join(lines + mapped) + "\n").encode())
    return lines


def explanation_lines(problem: Problem, device_of: IntArray) -> list[str]:
    """Says what bounds a step and what its granularity costs, in lines of 80 characters; advice comes first.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
    """
    found = explain(problem, device_of)
    return explain_lines(found) + granularity_lines(problem, found.total_s)


def write_trace(path: str | os.PathLike[str], problem: Problem, device_of: IntArray) -> None:
    """Writes the trace of a simulated step, which Perfetto and chrome://tracing read; `.gz` compresses it."""
    write_json_atomic(path, trace_events(problem, device_of), indent=None)


def granularity_lines(problem: Problem, placed_s: float) -> list[str]:
    """Says in a line of 80 characters what placing by module, block or layer costs; no line by op."""
    by_op_s, budget = _by_op_s(problem), f"in {EVALUATIONS:,} evaluations"
    if by_op_s is None:
        return []
    if by_op_s > (1.0 - WORTH_IT) * placed_s:
        return [f"refine by op finds no shorter step {budget}"]
    times = f"{placed_s / by_op_s:.2f} times" if by_op_s else "many times"
    return [f"refine by op finds {in_ms(by_op_s)} {budget}: {times} as fast"]


@lru_cache(maxsize=1)
def _by_op_s(problem: Problem) -> float | None:
    """Step by op, infinite if none is feasible; None for a graph that is by op.

    An evaluation asks for it with one placement of a problem after the other.
    """
    by_op = graph_by_op(problem.graph)
    if by_op is None:
        return None
    found = PLACERS["refine"].place(
        Problem(by_op, problem.cluster), Budget(EVALUATIONS), np.random.default_rng(0)
    )
    return found.step_time.total_s if found.feasible else math.inf
