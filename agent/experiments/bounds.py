"""The tightness of the lower bound, and the worth of its parts, on the benchmark set.

`python -m agent.experiments.bounds` prints the table; `--cluster gpu+cpu --scarce 0.25` makes memory scarce.
"""

from __future__ import annotations

import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from agent.bounds.lower_bound import lower_bound_s
from agent.experiments.launcher import exit_code, markdown_table
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from graphs.dataset import load_graphs
from graphs.families import FAMILIES
from graphs.granularity import with_granularity
from graphs.step_settings import GRANULARITIES
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

ENDLESS_BYTES_PER_S = 1e15
MEANS = {
    "gain": "gain",
    "memory_gain": "gain of memory",
    "refined_free": "refine over free bound",
    "refined": "refine over bound",
}
"""Columns of the table that are geometric means, and their headings."""


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


def table(rows: Sequence[BoundRow]) -> str:
    """A row per family: geometric means, the greatest gain, the longest time."""

    def mean(values: Sequence[float]) -> str:
        logs = np.log([value for value in values if not np.isnan(value)])
        return f"{np.exp(logs.mean()):.3f}" if len(logs) else "no placement"

    def cells(name: str, own: Sequence[BoundRow]) -> list[str]:
        means = [mean([getattr(row, key) for row in own]) for key in MEANS]
        greatest = [max(getattr(row, key) for row in own) for key in ("gain", "memory_gain")]
        slowest = max(row.seconds for row in own)
        return [name, str(len(own)), *means, *(f"{most:.3f}" for most in greatest), f"{slowest:.2f}"]

    head = ["family", "graphs", *MEANS.values(), "most gain", "most of memory", "most s"]
    families = dict.fromkeys(row.family for row in rows)
    body = [cells(family, [row for row in rows if row.family == family]) for family in families]
    return markdown_table([head, *body, cells("all", rows)])


def _share(text: str) -> float:
    share = float(text)
    if not 0 < share < np.inf:
        raise ArgumentTypeError(f"{text} is no share; give a number above 0")
    return share


def main(arguments: Sequence[str] | None = None) -> int:
    """Compare, print the table; returns 0: done, 1: stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.bounds", description=__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--cluster", default="4xv100")
    parser.add_argument("--evaluations", type=int, default=10_000, help="of refine")
    parser.add_argument("--granularity", choices=GRANULARITIES, default="op")
    parser.add_argument(
        "--scarce",
        type=_share,
        metavar="SHARE",
        help="memory of the fastest kind of device, as a share of what the graph keeps; others have enough",
    )
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows (.csv)")
    options = parser.parse_args(arguments)

    def rows() -> Iterator[BoundRow]:
        cluster, console = get_cluster(options.cluster), Console(stderr=True)
        graphs = load_graphs(options.families)
        lower_bound_s(Problem(graphs[0], cluster))  # compiles
        for graph in track(graphs, "bounds", console=console):
            problem = Problem(with_granularity(graph, options.granularity), cluster)
            problem = with_scarce_memory(problem, options.scarce) if options.scarce else problem
            if problem.is_feasible:
                yield bound_row(problem, options.evaluations)

    def work() -> None:
        found = list(rows())
        print(table(found))
        if options.rows:
            columns = [item.name for item in fields(BoundRow)]
            write_csv(options.rows, columns, [astuple(row) for row in found])

    return exit_code("agent.experiments.bounds", work)


if __name__ == "__main__":
    sys.exit(main())
