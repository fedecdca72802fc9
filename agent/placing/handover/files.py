"""The files that are handed over with a placement."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from weakref import WeakKeyDictionary

import numpy as np

from agent.placers.base import PLACERS, Budget
from agent.placing.handover.device_map import project
from agent.placing.handover.explain import WORTH_IT, explain, explain_lines, times_as_fast
from agent.placing.handover.trace import step_trace, write_trace
from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.simulator.simulate import StepTime
from graphs.granularity import graph_by_op
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_rows
from graphs.system.json_files import write_bytes_atomic, write_json_atomic
from graphs.system.numbers import in_ms

GRAPH = "graph.json.gz"
EVALUATIONS = 1_000
"""Placements by op that are tried."""
_BY_OP_S: WeakKeyDictionary[Problem, float | None] = WeakKeyDictionary()
"""Steps that the search by op found; an evaluation hands over one placement of a problem after the other."""


@dataclass(frozen=True)
class OpRow:
    """The source line of an op and its device.

    Attributes:
        source: line of code that ran it, `file.py:12`; "" if it is not known.
        shape: of the first tensor that it makes, `2x5`; "" of a scalar, or if it is not known.
    """

    op: str
    type: str
    phase: str
    module: str
    source: str
    shape: str
    device: str


@dataclass(frozen=True)
class MemoryRow:
    """The memory that a device holds.

    Attributes:
        peak_bytes: greatest memory in use, simulated.
    """

    device: str
    peak_bytes: float
    capacity_bytes: float
    share: float


def op_rows(graph: OpGraph, cluster: Cluster, device_of: IntArray) -> Iterator[OpRow]:
    """Lists all ops in program order.

    Args:
        device_of: device index of each op, int (n_ops,).
    """
    for op, device in enumerate(device_of.tolist()):
        yield OpRow(
            graph.op_names[op],
            graph.op_types[op],
            graph.phases[op],
            graph.modules[op],
            graph.sources[op],
            "x".join(map(str, graph.shapes[op] or ())),
            cluster.devices[device].name,
        )


def write_handover(
    folder: Path, name: str, problem: Problem, device_of: IntArray, step: StepTime
) -> list[str]:
    """Writes all that is handed over with a placement, and returns lines that say what bounds its step.

    The files are `graph.json.gz` and, after the name of the placement, `.ops.csv`, `.memory.csv`,
    `.trace.json`, `.explain.txt` and, where ops have module paths, `.device_map.json`.

    Args:
        name: what the file names begin with.
        device_of: device index of each op, int64 (n_ops,); not checked.
        step: simulated step under that placement.
    """
    graph, cluster = problem.graph, problem.cluster
    lines = explanation_lines(problem, device_of, step)
    write_graphs(folder / GRAPH, [graph])
    write_rows(folder / f"{name}.ops.csv", OpRow, op_rows(graph, cluster, device_of))
    memory = [
        MemoryRow(device.name, peak, device.memory_bytes, peak / device.memory_bytes)
        for device, peak in zip(cluster.devices, step.peak_bytes.tolist(), strict=True)
    ]
    write_rows(folder / f"{name}.memory.csv", MemoryRow, memory)
    write_trace(folder / f"{name}.trace.json", step_trace(problem, device_of, step))
    mapped: list[str] = []
    if any(graph.modules):
        by_module = project(problem, device_of)
        write_json_atomic(folder / f"{name}.device_map.json", dict(by_module.devices))
        mapped.append(str(by_module))
    write_bytes_atomic(folder / f"{name}.explain.txt", ("\n".join(lines + mapped) + "\n").encode())
    return lines


def explanation_lines(problem: Problem, device_of: IntArray, step: StepTime) -> list[str]:
    """Says what bounds a step and what its granularity costs, in lines of 80 characters; advice comes first.

    Args:
        device_of, step: as `explain` has them.
    """
    found = explain(problem, device_of, step)
    return explain_lines(found) + granularity_lines(problem, found.total_s)


def granularity_lines(problem: Problem, placed_s: float) -> list[str]:
    """Says in a line of 80 characters what placing by module, block or layer costs; no line by op."""
    if problem not in _BY_OP_S:
        _BY_OP_S[problem] = _search_by_op(problem)
    by_op_s, budget = _BY_OP_S[problem], f"in {EVALUATIONS:,} evaluations"
    if by_op_s is None:
        return []
    if by_op_s > (1.0 - WORTH_IT) * placed_s:
        return [f"refine by op finds no shorter step {budget}"]
    times = times_as_fast(placed_s, by_op_s)
    return [f"refine by op finds {in_ms(by_op_s)} {budget}: {times} as fast"]


def _search_by_op(problem: Problem) -> float | None:
    """Returns the step by op, infinite if none is feasible; None for a graph that is by op."""
    by_op = graph_by_op(problem.graph)
    if by_op is None:
        return None
    found = PLACERS["refine"].place(problem.with_graph(by_op), Budget(EVALUATIONS), np.random.default_rng(0))
    return found.step_time.total_s if found.feasible else math.inf
