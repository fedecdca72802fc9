"""The tightness of the lower bound, and the worth of its parts, on the benchmark set."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from agent.bounds.lower_bound import lower_bound_s
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import followed
from agent.experiments.rows import axis, markdown_table, mean_cell, read_rows
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_graphs
from graphs.families import FAMILIES
from graphs.granularity import with_granularity

ENDLESS_BYTES_PER_S = 1e15
ALL = "all"
LEVELS = ("op", "module", "block", "layer")
SCARCE = ("gpu+cpu", "a100+v100")
"""Clusters with two kinds of devices, the faster of which gets little memory."""


@dataclass(frozen=True)
class BoundRow:
    """The bound of a graph.

    Attributes:
        gain: bound over the one of the same cluster with free transfers.
        memory_gain: bound over the one of the same cluster with memory for everything on each device.
        refined: step time that `refine` finds, over the bound; NaN where it finds no feasible placement.
        refined_free: the same over the bound with free transfers.
        seconds: that the bound took.
    """

    graph: str
    family: str
    ops: int
    gain: float
    memory_gain: float
    refined: float
    refined_free: float
    seconds: float


def bound_row(problem: Problem, evaluations: int) -> BoundRow:
    """Compares the bounds of a problem, and what `refine` finds, with one another."""
    n = problem.n_devices
    endless, none = np.full((n, n), ENDLESS_BYTES_PER_S), np.zeros((n, n))
    cluster = replace(problem.cluster, bytes_per_s=endless, latency_s=none, n_half_bytes=0.0)
    free = Problem(problem.graph, cluster)
    began = time.perf_counter()
    bound_s = lower_bound_s(problem)
    seconds = time.perf_counter() - began
    free_s = lower_bound_s(free)
    ample_s = lower_bound_s(problem.with_memory(np.full(n, held_bytes(problem))))
    found = PLACERS["refine"].place(problem, Budget(evaluations), np.random.default_rng(0))
    step_s = found.step_time.total_s if found.feasible else np.nan
    return BoundRow(
        problem.graph.name,
        problem.graph.family,
        problem.graph.n_ops,
        bound_s / free_s,
        bound_s / ample_s,
        step_s / bound_s,
        step_s / free_s,
        seconds,
    )


def held_bytes(problem: Problem) -> float:
    """All bytes of a graph; a device with as much memory holds any placement."""
    return float(problem.graph.resident_bytes.sum() + problem.graph.tensor_bytes.sum())


def with_scarce_memory(problem: Problem, share: float) -> Problem:
    """Makes memory scarce where it hurts.

    Args:
        share: of the footprints of the graph, for all devices of the fastest kind together; more than 0. The
            other devices have memory for everything.
    """
    step_s = problem.op_seconds.sum(axis=0)
    fastest = step_s == step_s.min()
    scarce = share * problem.footprint_bytes.sum() / fastest.sum()
    return problem.with_memory(np.where(fastest, scarce, held_bytes(problem)))


def bound_rows(
    families: Sequence[str], cluster: str, granularity: str, evaluations: int, scarce: float | None = None
) -> list[BoundRow]:
    """Compares the bounds of all graphs that fit on a cluster.

    Args:
        families: of graphs; none for all.
        scarce: memory of the fastest devices, as `with_scarce_memory` takes it; None for that of the cluster.

    Raises:
        InputError: an unknown family or cluster, or a share of 0.
    """
    if scarce is not None and not scarce > 0:
        raise ExperimentError(f"--scarce {scarce:g} leaves no memory; give a share above 0")
    graphs, devices = load_graphs(list(families or FAMILIES)), get_cluster(cluster)
    lower_bound_s(Problem(graphs[0], devices))  # compiles
    found = []
    for graph in followed(graphs, f"{cluster}, {granularity}"):
        problem = Problem(with_granularity(graph, granularity), devices)
        problem = problem if scarce is None else with_scarce_memory(problem, scarce)
        if problem.is_feasible:
            found.append(bound_row(problem, evaluations))
    return found


def by_level(
    folder: Path, families: Sequence[str], cluster: str, evaluations: int
) -> Iterator[list[BoundRow]]:
    """Makes the rows of each granularity."""
    for level in LEVELS:
        yield bound_rows(families, cluster, level, evaluations)


def with_little_memory(
    folder: Path, families: Sequence[str], scarce: float, evaluations: int
) -> Iterator[list[BoundRow]]:
    """Makes the rows of each cluster with two kinds of devices, by op and by module."""
    for cluster in SCARCE:
        for level in LEVELS[:2]:
            yield bound_rows(families, cluster, level, evaluations, scarce)


def levels_tables(*files: Path) -> Iterator[str]:
    """Yields how far what `refine` finds is from the bound, and what transfers add to the bound."""
    rows = {level: read_rows(file, BoundRow) for level, file in zip(LEVELS, files, strict=True)}
    columns = {"gain of transfers": (rows["op"], "gain")}
    columns |= {f"refine over bound, {level}": (own, "refined") for level, own in rows.items()}
    yield families_table(columns)
    head = ["placed by", "seconds of a bound, mean", "most"]
    seconds = {level: [row.seconds for row in own] for level, own in rows.items()}
    body = [[level, f"{sum(own) / len(own):.3f}", f"{max(own):.3f}"] for level, own in seconds.items()]
    yield markdown_table([head, *body])


def memory_tables(*files: Path) -> Iterator[str]:
    """Yields what memory adds to the bound where the fastest device has little of it."""
    cases = [f"{cluster}, {level}" for cluster in SCARCE for level in LEVELS[:2]]
    rows = [read_rows(file, BoundRow) for file in files]
    most = [f"{max(row.memory_gain for row in own):.3f}" for own in rows]
    columns = {case: (own, "memory_gain") for case, own in zip(cases, rows, strict=True)}
    yield f"{families_table(columns)}\n{' | '.join(['| greatest', '', *most])} |"


def families_table(columns: Mapping[str, tuple[Sequence[BoundRow], str]]) -> str:
    """Formats geometric means: a row per family and one of all.

    Args:
        columns: rows, and the attribute that is averaged, by the head of the column.
    """
    first, _ = next(iter(columns.values()))
    body = []
    for family in (*axis(row.family for row in first), ALL):
        own = [[row for row in rows if family in (row.family, ALL)] for rows, _ in columns.values()]
        means = [
            mean_cell(getattr(row, attribute) for row in rows)
            for rows, (_, attribute) in zip(own, columns.values(), strict=True)
        ]
        body.append([family, str(len(own[0])), *means])
    return markdown_table([["family", "graphs", *columns], *body])
