"""How much the step times of coarse graphs differ from those of their ops, over the benchmark set.

Each graph is coarsened, the coarse graph is placed, and the placement is timed twice: on the coarse graph
and, expanded, op by op. `python -m agent.experiments.coarsening --groups 512 128` prints a table for each
number of groups.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from zlib import crc32

import numpy as np

from agent.command_line import OneLineParser
from agent.evaluation.summary import geometric_mean
from agent.placers import PLACERS, Budget
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.coarsening.coarsen import MAX_UNITS
from graphs.dataset import load_family
from graphs.families import FAMILIES
from graphs.op_graph import OpGraph

PLACED_BY = {"random": 1, "heft": 16, "m-etf": 16}
"""Placers of the coarse graphs, and their evaluations."""
HEADINGS = ("family", "graphs", *(f"{name}{part}" for name in PLACED_BY for part in ("", " worst", " found")))
LEGEND = (
    "Step time of the coarse graph over that of its ops, for one placement of the groups: geometric mean and",
    "worst of a family, for placements drawn at random and those that list schedulers find for the coarse",
    "graph; found: step time of the latter, op by op, over what the same scheduler finds op by op. Graphs of",
    "no more decision units than groups are left out.",
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


def difference(problem: Problem, placer: str, n_groups: int) -> Difference:
    """Place a problem in groups, and op by op, and time both."""
    coarse = coarse_problem(problem, n_groups)
    budget, seed = Budget(PLACED_BY[placer]), [crc32(problem.graph.name.encode())]
    groups = PLACERS[placer].place(coarse, budget, np.random.default_rng(seed)).placement.device_of
    ops = PLACERS[placer].place(problem, budget, np.random.default_rng(seed)).placement.device_of
    expanded_s = step_time_s(problem, coarse.coarsening.expand(groups))
    return Difference(step_time_s(coarse, groups) / expanded_s, expanded_s / step_time_s(problem, ops))


def family_row(name: str, graphs: Sequence[OpGraph], cluster: Cluster, n_groups: int) -> tuple[str, ...]:
    """Cells of one family."""
    cells = [name, str(len(graphs))]
    for placer in PLACED_BY:
        found = [difference(Problem(graph, cluster), placer, n_groups) for graph in graphs]
        worst = max((each.coarse for each in found), key=lambda ratio: abs(math.log(ratio)), default=None)
        cells += map(_number, (geometric_mean(each.coarse for each in found), worst))
        cells.append("" if placer == "random" else _number(geometric_mean(each.found for each in found)))
    return tuple(cells)


def lines(families: Sequence[str], cluster: Cluster, n_groups: int) -> Iterator[str]:
    """The table for one number of groups."""
    rows = [HEADINGS]
    for name in families:
        large = [graph for graph in load_family(name) if len(graph.units) > n_groups]
        rows.append(family_row(name, large, cluster, n_groups))
    yield f"at most {n_groups} groups, on {cluster.name}"
    yield from _aligned(rows)


def _aligned(rows: Sequence[Sequence[str]]) -> Iterator[str]:
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for first, *others in rows:
        cells = (f"{cell:>{width}}" for cell, width in zip(others, widths[1:], strict=True))
        yield "  ".join([f"{first:{widths[0]}}", *cells]).rstrip()


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables; returns the exit code: 0 done, 2 wrong input."""
    parser = OneLineParser(prog="python -m agent.experiments.coarsening", description=__doc__)
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="NAME", help="default: all")
    parser.add_argument(
        "--groups", nargs="+", type=int, default=[MAX_UNITS], metavar="N", help="default: 512"
    )
    parser.add_argument("--cluster", default="4xv100", metavar="NAME|FILE", help="default: %(default)s")
    options = parser.parse_args(arguments)
    try:
        families, cluster = [FAMILIES.check(name) for name in options.families], get_cluster(options.cluster)
        _print_all(lines(families, cluster, n_groups) for n_groups in options.groups)
    except ValueError as error:
        print(f"coarsening_table: {error}", file=sys.stderr)
        return 2
    return 0


def _print_all(tables: Iterable[Iterable[str]]) -> None:
    for table in tables:
        for line in table:
            print(line, flush=True)
        print()
    print("\n".join(LEGEND))


if __name__ == "__main__":
    sys.exit(main())
