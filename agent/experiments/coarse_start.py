"""Tests whether the best placement of a graph's groups is a start for the search op by op, in equal time.

`python -m agent.experiments.coarse_start` prints the table. `exact` places the groups of a coarsened graph;
the search goes on from there op by op, if that is ahead of what `refine` found first. That a placement of the
groups is proven best on the coarse graph proves nothing of the graph itself.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import track

from agent.experiments.equal_time.sealed import sealed_graphs
from agent.experiments.launcher import exit_code, markdown_table
from agent.placers.base import PLACERS, Budget, SearchState
from agent.placers.exact.solver import MAX_OPS, START_EVALUATIONS
from agent.placers.search.annealing import anneal_from_leaders
from agent.policy.serialization import read_card
from envs.cluster.presets import get_cluster
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

EQUAL = 1e-3
"""Steps that differ by less, as a share, count as neither won nor lost."""


@dataclass(frozen=True)
class Row:
    """A search that began with the placement of groups; step times are over that of `refine` in equal time.

    Attributes:
        ops: computing ops.
        start: what `refine` found with few evaluations, before the groups were placed.
        is_closed: whether the placement of the groups is the best on the coarse graph.
        grouped: step of the graph where its groups are placed so.
        found: what the search found in the end.
    """

    graph: str
    family: str
    ops: int
    cluster: str
    groups: int
    seconds: float
    start: float
    is_closed: bool
    grouped: float
    found: float


def rows_of(problem: Problem, groups: Sequence[int], seconds: float) -> Iterator[Row]:
    """Refines a problem, then searches as long from the placement of each number of groups."""
    refined = PLACERS["refine"].place(problem, Budget(None, seconds), np.random.default_rng(0))
    refined_s, graph = refined.step_time.total_s, problem.graph
    for n_groups in groups:
        rng, search = np.random.default_rng(0), SearchState(problem, Budget(None, seconds))
        start = PLACERS["refine"].place(problem, Budget(START_EVALUATIONS, seconds), rng)
        search.score(start.placement.device_of[None])
        coarse = coarse_problem(problem, n_groups)
        half_s = max(search.seconds_left / 2, 0.1)
        grouped = PLACERS["exact"].place(coarse, Budget(None, half_s), rng)
        device_of = coarse.coarsening.expand(grouped.placement.device_of)
        ((grouped_s, _),) = search.score(device_of[None], overdue=True)
        anneal_from_leaders(search, rng)
        yield Row(
            graph=graph.name,
            family=graph.family,
            ops=int(graph.is_compute.sum()),
            cluster=problem.cluster.name,
            groups=n_groups,
            seconds=seconds,
            start=start.step_time.total_s / refined_s,
            is_closed=grouped.lower_bound_s >= grouped.step_time.total_s * (1 - 1e-6),
            grouped=grouped_s / refined_s,
            found=search.best_score[1] / refined_s,
        )


def table(rows: Sequence[Row]) -> str:
    """A row per cluster and number of groups; means are geometric."""
    head = ["cluster", "groups", "graphs", "closed", "groups' best placement over refine, mean", "least"]
    head += ["ahead of the start", "search from it over refine, mean", "won : lost"]
    body = []
    for cluster, groups in dict.fromkeys((row.cluster, row.groups) for row in rows):
        own = [row for row in rows if (row.cluster, row.groups) == (cluster, groups)]
        grouped, found = (np.array([getattr(row, name) for row in own]) for name in ("grouped", "found"))
        cells = [cluster, str(groups), str(len(own)), str(sum(row.is_closed for row in own))]
        cells += [f"{np.exp(np.log(grouped).mean()):.3f}", f"{grouped.min():.3f}"]
        cells += [str(sum(row.grouped < row.start for row in own)), f"{np.exp(np.log(found).mean()):.3f}"]
        body.append([*cells, f"{(found < 1 - EQUAL).sum()} : {(found > 1 + EQUAL).sum()}"])
    return markdown_table([head, *body])


def main(arguments: Sequence[str] | None = None) -> int:
    """Search, print the table; returns 0: done, 1: stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.coarse_start", description=__doc__)
    parser.add_argument("--clusters", nargs="+", default=["4xv100", "4xa100-pcie"], metavar="CLUSTER")
    parser.add_argument("--groups", nargs="+", type=int, default=[24, 64], help="numbers of groups")
    parser.add_argument("--seconds", type=float, default=8.0, help="of each search")
    parser.add_argument("--known", type=int, default=1, help="draws of each family of the benchmark set")
    parser.add_argument("--new", type=int, default=1, help="draws of each family never used before")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        graphs = sealed_graphs(
            Path("runs") / "sealed",
            n_known=options.known,
            n_new=options.new,
            how_seen=read_card("pretrained").how_seen,
        )
        large = [graph for graph in graphs if graph.is_compute.sum() > MAX_OPS]
        problems = [Problem(graph, get_cluster(name)) for name in options.clusters for graph in large]
        rows: list[Row] = []
        for problem in track(problems, "problems", console=Console(stderr=True)):
            if problem.is_feasible:
                rows += rows_of(problem, options.groups, options.seconds)
        print(f"\n{table(rows)}")
        if options.rows:
            write_csv(options.rows, [item.name for item in fields(Row)], [astuple(row) for row in rows])

    return exit_code("agent.experiments.coarse_start", work)


if __name__ == "__main__":
    sys.exit(main())
