"""The differences between the step times of coarse graphs and of their ops, over the benchmark set.

Each graph is coarsened, the coarse graph is placed, and the placement is timed twice: on the coarse graph
and, expanded, op by op. `python -m agent.experiments.coarsening --groups 512 128` prints a table for each
number of groups.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from zlib import crc32

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean
from agent.evaluation.text_table import text_table
from agent.experiments.launcher import exit_code
from agent.placers.base import PLACERS, Budget
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.coarsening.coarsen import MAX_UNITS
from graphs.dataset import load_family
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

PLACED_BY = {"random": 1, "heft": 16, "m-etf": 16}
"""Placers of the coarse graphs, and their evaluations."""
HEADINGS = ("family", "graphs", *(f"{name}{part}" for name in PLACED_BY for part in ("", " worst", " found")))
LEGEND = (
    "Step time of the coarse graph over that of its ops, for one placement of the groups: geometric mean and",
    "worst of a family, for placements drawn at random and those that list schedulers find for the coarse",
    "graph; found: step time of the latter, op by op, over what the same scheduler finds op by op. Graphs of",
    "no more placement units than groups are left out.",
)


@dataclass(frozen=True)
class Difference:
    """One graph, placed by one placer in groups.

    Attributes:
        coarse: step time of the coarse graph over that of its ops, for the same placement.
        found: step time of the ops over that of what the placer finds op by op.
    """

    coarse: float
    found: float


@dataclass(frozen=True)
class CoarseningRow:
    """The graphs of a family, placed by one placer in at most so many groups.

    Attributes:
        coarse_over_fine: geometric mean of `Difference.coarse`; None without graphs.
        worst: the `Difference.coarse` furthest from 1.
        found_over_op_by_op: geometric mean of `Difference.found`; None without graphs and for `random`.
    """

    groups: int
    family: str
    graphs: int
    placer: str
    coarse_over_fine: float | None
    worst: float | None
    found_over_op_by_op: float | None


COLUMNS = tuple(field.name for field in fields(CoarseningRow))
"""Columns of the rows as CSV."""


def difference(problem: Problem, placer: str, n_groups: int) -> Difference:
    """Place a problem in groups and op by op, and time both."""
    coarse = coarse_problem(problem, n_groups)
    budget, seed = Budget(PLACED_BY[placer]), [crc32(problem.graph.name.encode())]
    groups = PLACERS[placer].place(coarse, budget, np.random.default_rng(seed)).placement.device_of
    ops = PLACERS[placer].place(problem, budget, np.random.default_rng(seed)).placement.device_of
    expanded_s = step_time_s(problem, coarse.coarsening.expand(groups))
    return Difference(step_time_s(coarse, groups) / expanded_s, expanded_s / step_time_s(problem, ops))


def family_rows(
    name: str, graphs: Sequence[OpGraph], cluster: Cluster, n_groups: int
) -> Iterator[CoarseningRow]:
    """Place the graphs of a family, a row per placer."""
    for placer in PLACED_BY:
        all_of = [difference(Problem(graph, cluster), placer, n_groups) for graph in graphs]
        yield CoarseningRow(
            groups=n_groups,
            family=name,
            graphs=len(graphs),
            placer=placer,
            coarse_over_fine=geometric_mean(each.coarse for each in all_of),
            worst=max((each.coarse for each in all_of), key=lambda ratio: abs(math.log(ratio)), default=None),
            found_over_op_by_op=(
                None if placer == "random" else geometric_mean(each.found for each in all_of)
            ),
        )


def table(rows: Sequence[CoarseningRow], cluster: Cluster) -> list[str]:
    """The lines of the table for one number of groups, a line per family."""
    by_family: dict[str, list[str]] = {}
    for row in rows:
        cells = by_family.setdefault(row.family, [row.family, str(row.graphs)])
        found = "" if row.placer == "random" else _number(row.found_over_op_by_op)
        cells += [_number(row.coarse_over_fine), _number(row.worst), found]
    title = f"at most {rows[0].groups} groups, on {cluster.name}"
    return [title, *text_table(HEADINGS, list(by_family.values())).lines, ""]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns the exit code: 0 done, 1 stopped, 2 wrong input."""
    parser = OneLineParser(prog="agent.experiments.coarsening", description=__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="NAME", help="default: all")
    parser.add_argument(
        "--groups", nargs="+", type=int, default=[MAX_UNITS], metavar="N", help="default: 512"
    )
    parser.add_argument("--cluster", default="4xv100", metavar="NAME|FILE", help="default: %(default)s")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of the tables (.csv)")
    options = parser.parse_args(arguments)

    def work() -> None:
        families, cluster = [FAMILIES.check(name) for name in options.families], get_cluster(options.cluster)
        rows: list[CoarseningRow] = []
        for n_groups in options.groups:
            of_groups: list[CoarseningRow] = []
            for name in families:
                large = [graph for graph in load_family(name) if len(graph.units) > n_groups]
                of_groups += family_rows(name, large, cluster, n_groups)
            print("\n".join(table(of_groups, cluster)), flush=True)
            rows += of_groups
        print("\n".join(LEGEND))
        if options.rows:
            write_csv(options.rows, COLUMNS, map(astuple, rows))

    return exit_code("agent.experiments.coarsening", work)


if __name__ == "__main__":
    sys.exit(main())
