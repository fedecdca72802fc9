"""The view of a placement and its simulated step: its text and table, and the files that are handed over."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from pkgutil import resolve_name
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np

from agent.placers.base import PLACERS, Budget
from agent.placing.handover.device_map import project
from agent.placing.handover.explain import (
    WORTH_IT,
    Explanation,
    advice_line,
    explain,
    explain_lines,
    host_lines,
    times_as_fast,
)
from agent.placing.handover.trace import step_trace, write_trace
from envs.cluster.cluster import Cluster
from envs.objective import PIPELINE, STEP, Objective
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.data_parallel import DataParallelStep
from envs.simulator.simulate import SimulatedStep, StepTime
from graphs.granularity import graph_by_op
from graphs.io.graph_files import write_graphs
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_rows
from graphs.system.errors import in_ms
from graphs.system.json_files import write_bytes_atomic, write_json_atomic

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
    explanation = explain(problem, device_of, step)
    return explain_lines(explanation) + granularity_lines(problem, explanation.total_s)


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
    result = PLACERS["refine"].place(problem.with_graph(by_op), Budget(EVALUATIONS), np.random.default_rng(0))
    return result.step_time.total_s if result.feasible else math.inf


@dataclass(frozen=True, eq=False)
class View:
    """The view of a placement and its simulated step of one batch; that of a pipeline is a subclass.

    Attributes:
        objective: the `Objective` that the placement makes short.
        step: the simulated step, as the objective makes it.
        best_steps, tried: as of `Plan`.
    """

    objective: Any
    placement: Placement
    step: Any
    best_steps: Mapping[int | str, SimulatedStep] = field(default_factory=dict)
    tried: Sequence[str] = ()

    @cached_property
    def explanation(self) -> Explanation:
        """The bounds of the step of the graph, and the time that removing each would save, in numbers."""
        return explain(self.objective.problem, self.placement.device_of, self.step)

    @property
    def data_parallel(self) -> DataParallelStep:
        """Data parallelism on the same devices."""
        return self.explanation.data_parallel

    def summary(self, where: str, bound: str, ops: str) -> list[str]:
        """Says in lines what the placement is worth, and what to use.

        Args:
            where: names of the graph, the cluster and the placer.
            bound: words on the lower bound.
            ops: line on the ops of each device, and on the search.
        """
        explanation, (single_s, single_fits) = self.explanation, self.objective.single_step
        ratio, memory = self.step.total_s / single_s, "" if single_fits else ", had it the memory"
        worth = f"{ratio:.3f} of the fastest single device's{memory}" if self.step.fits else "out of memory"
        return [
            *host_lines(explanation.host),
            f"{where}: a step takes {in_ms(self.step.total_s)} (simulated)",
            f"{worth}; {bound}",
            ops,
            f"data parallel: {explanation.data_parallel}",
            advice_line(explanation),
        ]

    def explain(self) -> list[str]:
        """Says in lines what to use, and what bounds the step."""
        return explanation_lines(self.objective.problem, self.placement.device_of, self.step)

    def table(self) -> list[Any]:
        """Lists the rows of ops, in program order, or of stages."""
        problem = self.objective.problem
        return list(op_rows(problem.graph, problem.cluster, self.placement.device_of))

    def trace(self) -> dict[str, Any]:
        """Makes the trace of the step."""
        return step_trace(self.objective.problem, self.placement.device_of, self.step)

    def hand_over(self, folder: Path, name: str) -> list[str]:
        """Writes the files that begin with a name; returns lines on what bounds the step."""
        return write_handover(folder, name, self.objective.problem, self.placement.device_of, self.step)

    def check_compiles(self) -> None:
        """Checks that `Plan.compile` can run the step."""


VIEWS = {STEP: "agent.placing.handover.files:View", PIPELINE: "agent.pipeline.view:PipelineView"}
"""Class of the views of each kind of objective, which is loaded when one is made."""


def view_of(objective: Objective, placement: Placement, step: SimulatedStep, *others: Any) -> View:
    """Makes the view of a placement and its simulated step; `others` are the other fields of `View`."""
    return resolve_name(VIEWS[objective.kind])(objective, placement, step, *others)
