"""Seconds to plan a pipeline of many ops on many devices."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import numpy as np

from agent.lab.pipeline_clusters import nodes
from agent.lab.rows import grouped, markdown_table, read_rows
from agent.pipelines.equal import balanced
from agent.pipelines.search import PipelineSearch, place_pipeline
from agent.placers.base import Budget
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.families import large
from graphs.op_graph import OpGraph
from graphs.system.progress import followed

COUNTS, MICROBATCHES, PAPER = (16, 32, 64), 256, 1_000
"""Devices that are measured, microbatches, and devices that are extrapolated."""
PARTS = ("preparation_s", "plan_s", "simulation_s", "memory_s")


@dataclass(frozen=True)
class ScaleRow:
    """Processor seconds of a search and its parts.

    Attributes:
        preparation_s: of the costs of all ops on all devices, and of the pieces.
        plan_s: to make one plan of equal time, with its actions, and simulate it.
        simulation_s, memory_s: to simulate it again, without and with its memory.
        plans: that the search scored.
        gain: throughput of the plan over that of the plan of equal time.
    """

    graph: str
    ops: int
    devices: int
    microbatches: int
    preparation_s: float
    plan_s: float
    simulation_s: float
    memory_s: float
    search_s: float
    plans: int
    gain: float
    fits: bool


def scale_rows(folder: Path, graphs: Sequence[str], seconds: float) -> Iterator[list[ScaleRow]]:
    """Plans functions of `graphs.families.large` on nodes of four A100.

    Args:
        folder: not written to.
        seconds: processor seconds of `refine`.
    """
    found = []
    for name in graphs:
        graph = capture(*getattr(large, name)(), name=name)
        with patch("time.perf_counter", time.process_time):
            scale_row(graph, COUNTS[0], seconds / 10)  # compiles
            found += [scale_row(graph, count, seconds) for count in followed(COUNTS, name)]
    yield found


def scale_row(graph: OpGraph, n_devices: int, seconds: float) -> ScaleRow:
    """Plans a graph on so many devices; see `scale_rows`. Of the parts, the least of three times counts."""
    cluster = nodes(["a100-sxm4-80gb"] * n_devices, "a100-nvswitch")
    all_marks = []
    for _round in range(3):
        marks = [time.process_time()]
        problem = Problem(graph, cluster)
        pipelined = PipelinedProblem(problem, Pipeline("1f1b", MICROBATCHES))
        _ = pipelined.arrays, problem.single_device_s, pipelined.chain.seconds_before
        marks.append(time.process_time())
        search = PipelineSearch(pipelined, Budget(1))
        stages = search.stages(balanced(search, range(search.most_ranks)))
        for simulate in (pipelined.step_time_s, pipelined.step_time_s, pipelined.score):
            simulate(stages)
            marks.append(time.process_time())
        all_marks.append(marks)
    prepared, planned, moved, remembered = np.diff(all_marks).min(axis=0).tolist()
    found = place_pipeline("refine", pipelined, Budget(None, seconds))
    gain = pipelined.step_time_s(stages) / found.step.total_s
    sizes = graph.name, graph.n_ops, n_devices, MICROBATCHES
    spent = prepared, planned, moved, remembered, found.cpu_s
    return ScaleRow(*sizes, *spent, found.evaluations, gain, found.step.fits)


def scale_tables(file: Path) -> Iterator[str]:
    """Yields the seconds of each graph, and what lines through them say of `PAPER` devices."""
    head = ["devices", "ops", "microbatches", "preparation", "new plan", "moved cut", "with memory"]
    for rows in grouped(read_rows(file, ScaleRow), lambda row: row.graph).values():
        counts, last = [row.devices for row in rows], rows[-1]
        paper = [_extrapolated(counts, [getattr(row, part) for row in rows]) for part in PARTS]
        seconds = [[*(getattr(row, part) for part in PARTS), row.search_s] for row in rows]
        seconds.append([*paper, last.plans * (paper[1] + paper[3] - paper[2])])
        body = [
            [f"{count:,}", f"{row.ops:,}", str(row.microbatches)]
            + [f"{each:.3f}" for each in (*spent, spent[0] + spent[-1])]
            + [str(row.plans), f"{row.gain:.3f}" if count == row.devices else ""]
            for count, row, spent in zip([*counts, PAPER], [*rows, last], seconds, strict=True)
        ]
        body[-1][0] += ", extrapolated"
        yield markdown_table([[*head, "search", "all", "plans", "throughput / equal time"], *body])


def _extrapolated(counts: Sequence[int], seconds: Sequence[float]) -> float:
    """Follows the least-squares line to `PAPER` devices; their mean where it falls."""
    slope, base = np.polyfit(counts, seconds, 1)
    return float(base + slope * PAPER) if slope > 0 else float(np.mean(seconds))
