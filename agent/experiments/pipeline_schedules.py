"""Searched orders of a pipeline's actions against fixed schedules, on the same split and on own splits."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.pipeline_clusters import CLUSTERS, rows_of_parts
from agent.experiments.rows import grouped, markdown_table, read_rows
from agent.instances.profiles import UNEQUAL, profile_cluster, profile_graph, profile_paths
from agent.pipelines.search import PipelineResult, PipelineSearch, place_pipeline
from agent.placers.base import Budget
from envs.pipeline.pipeline import INTERLEAVED, ONE_F_ONE_B, SEARCHED, ZERO_BUBBLE, Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem

FAMILIES = ("moe", "unet", "dit", "conformer")
USED = ("2 A100 + 2 V100", "4 A100 + 4 T4", "4 V100, 10 Gb/s")
"""Clusters of `CLUSTERS` that captured graphs are placed on."""
PROFILED, PROFILE_DEVICES = "profiles, half at half speed", 4
PROFILES_USED = ("gnmt", "vgg16", "resnet50", "resnext50")
COUNTS = (4, 8, 16, 32)
LEVELS = (1.0, 1.25, 2.0)
"""Memory limits of the same split, in peaks of `1f1b` on each device."""
OWN = "own split"
FIXED = (ONE_F_ONE_B, ZERO_BUBBLE, f"{INTERLEAVED}:2")
EVALUATIONS = 300
"""Of `refine`, which makes the split that schedules share."""


@dataclass(frozen=True)
class ScheduleRow:
    """The step of a schedule.

    Attributes:
        memory: limits of the same split, one of `LEVELS`, or `OWN`.
        seconds: processor seconds of the search, 0 without one.
    """

    graph: str
    family: str
    cluster: str
    microbatches: int
    memory: str
    schedule: str
    step_s: float
    fits: bool
    seconds: float


def schedule_rows(
    folder: Path, families: Sequence[str], seconds: float, first_seed: int
) -> Iterator[list[ScheduleRow]]:
    """Makes the rows of one sealed draw of each family, and of the profiles.

    Args:
        folder: keeps the rows of each graph on each cluster.
        families: of `FAMILIES`; none for all, and the profiles.
        seconds: processor seconds of a search.
    """
    graphs = sealed_graphs(families or FAMILIES, first_seed=first_seed)
    parts = [(Problem(graph, CLUSTERS[cluster]()), cluster) for graph in graphs for cluster in USED]
    if not families:
        unequal = profile_cluster(PROFILE_DEVICES, UNEQUAL)
        files = [profile_paths()[f"pipedream_{name}"] for name in PROFILES_USED]
        parts += [(Problem(profile_graph(file), unequal), PROFILED) for file in files]
    yield rows_of_parts(folder, ScheduleRow, parts, _rows, seconds)


def _rows(problem: Problem, cluster: str, seconds: float) -> Iterator[ScheduleRow]:
    graph, budget = problem.graph, Budget(None, seconds)
    for count in COUNTS:
        case = graph.name, graph.family, cluster, count
        shared = place_pipeline("refine", _pipelined(problem, ZERO_BUBBLE, count), Budget(EVALUATIONS))
        peak_bytes = _pipelined(problem, ONE_F_ONE_B, count).simulate(shared.stages).peak_bytes
        for level in LEVELS:
            limited = problem.with_memory(level * peak_bytes * (1 + 1e-9))
            for schedule in FIXED[:2]:
                step = _pipelined(limited, schedule, count).simulate(shared.stages)
                yield ScheduleRow(*case, str(level), schedule, step.total_s, step.fits, 0.0)
            search = PipelineSearch(_pipelined(limited, SEARCHED, count), budget)
            search.score_cuts(shared.cuts)
            search.search_actions(np.random.default_rng(0))
            yield _row(case, str(level), SEARCHED, search.pipeline_result())
        for schedule in (*FIXED, SEARCHED):
            yield _row(
                case, OWN, schedule, place_pipeline("refine", _pipelined(problem, schedule, count), budget)
            )


def _pipelined(problem: Problem, schedule: str, count: int) -> PipelinedProblem:
    return PipelinedProblem(problem, Pipeline(schedule, count, may_recompute=False))


def _row(case: tuple[str, str, str, int], memory: str, schedule: str, found: PipelineResult) -> ScheduleRow:
    return ScheduleRow(*case, memory, schedule, found.step.total_s, found.step.fits, found.cpu_s)


def schedule_tables(file: Path) -> Iterator[str]:
    """Yields step times of searched orders over those of fixed schedules, and where they are shorter."""
    rows = read_rows(file, ScheduleRow)
    names = (*USED, PROFILED, *(f"M = {count}" for count in COUNTS), "all")
    groups: Mapping[str, list[ScheduleRow]] = {
        name: [row for row in rows if name in (row.cluster, f"M = {row.microbatches}", "all")]
        for name in names
    }
    columns: dict[str, Callable[[list[ScheduleRow]], str]] = {
        f"{level:g} x memory": partial(_cell, str(level), FIXED) for level in LEVELS
    }
    columns |= {f"own split: / {name}": partial(_cell, OWN, (name,)) for name in FIXED}
    columns["own split: / best"] = partial(_cell, OWN, FIXED)
    columns["own split: best with it / best"] = partial(_cell, OWN, FIXED, joined=True)
    lines = [[name, *(cell(own) for cell in columns.values())] for name, own in groups.items() if own]
    yield markdown_table([["", *columns], *lines])
    body = [
        [
            *key,
            str(len(own)),
            str(sum(row.fits for row in own)),
            f"{np.mean([row.seconds for row in own]):.2f}",
        ]
        for key, own in grouped(rows, lambda row: (row.memory, row.schedule)).items()
    ]
    yield markdown_table([["memory", "schedule", "cases", "of which fit", "mean seconds of search"], *body])


def _cell(memory: str, others: Sequence[str], rows: Sequence[ScheduleRow], *, joined: bool = False) -> str:
    """Formats the geometric mean of ratios to the best of others, its interval, and cases won and lost.

    Args:
        joined: whether the best of all is compared, with the searched order among them.
    """
    logs: list[tuple[str, str, float]] = []
    for (family, graph, *_), own in grouped(
        (row for row in rows if row.memory == memory),
        lambda row: (row.family, row.graph, row.cluster, row.microbatches),
    ).items():
        steps = {row.schedule: row.step_s if row.fits else np.inf for row in own}
        best = min(steps.get(name, np.inf) for name in others)
        found = min(steps[SEARCHED], best) if joined else steps[SEARCHED]
        if max(best, found) < np.inf:
            logs.append((family, graph, np.log(found / best)))
    if not logs:
        return ""
    won, lost = (sum(sign * log > 1e-6 for *_, log in logs) for sign in (-1, 1))
    return f"{nested_interval(logs)}; {won} : {lost}"
