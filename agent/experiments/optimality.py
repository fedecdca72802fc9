"""The tables of placers against known optima; the page names the code that made the rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.experiments.rows import axis, markdown_table, read_rows

LEVEL = 1e-6
"""Steps that differ by less, as a share, are equal."""
MOST_TRIED = 0.1
"""A budget of more than this share of the placements that differ finds the optimum by trying."""
N_SEALED = 15
"""Families of the sealed set when the rows of the page were measured."""


@dataclass(frozen=True)
class Setting:
    """The settings of a problem.

    Attributes:
        n_units: placement units that graphs are coarsened to; 0: they are left whole.
        granularity: of whole graphs; those that can be solved by a finer one are left out.
    """

    cluster: str
    n_units: int = 0
    granularity: str = "op"


SETTINGS = tuple(
    setting
    for name in ("4xv100", "4xa100-pcie")
    for setting in (
        *(Setting(f"{name}:2", n_units) for n_units in (18, 32)),
        Setting(f"{name}:3", 11),
        Setting(name, 9),
        *(
            Setting(f"{name}:{n}", granularity=level)
            for n in (2, 3)
            for level in ("module", "block", "layer")
        ),
    )
)


@dataclass(frozen=True)
class OptimalityRow:
    """The placement of a placer on a graph that `exact` closed.

    Attributes:
        ops: computing ops.
        n_units: placement units.
        placements: that differ in more than the names of the devices.
        optimum_s: step time of the best placement there is.
        proof_cpu_s: processor seconds that `exact` took.
        single: the fastest single device's step time, its memory unlimited, over the optimum.
        bound: lower bound that is known without `exact`, over the optimum.
        placer: that was asked, with so many evaluations.
        found: step time that it found, over the optimum.
    """

    graph: str
    family: str
    ops: int
    cluster: str
    granularity: str
    n_units: int
    placements: int
    optimum_s: float
    proof_cpu_s: float
    single: float
    bound: float
    budget: int
    placer: str
    found: float
    evaluations: int
    cpu_s: float


def is_trivial(row: OptimalityRow) -> bool:
    """Says whether the fastest single device is optimal."""
    return abs(row.single - 1) <= LEVEL


def is_hard(row: OptimalityRow) -> bool:
    """Says whether one device is not optimal, and the budget too small to try many of the placements."""
    return not is_trivial(row) and row.budget <= MOST_TRIED * row.placements


def optimality_tables(file: Path) -> Iterator[str]:
    """Yields how far from optimal placers are, and how tight the bound is, on problems that are closed."""
    rows = read_rows(file, OptimalityRow)
    yield table(rows)
    yield closed_table(rows, {setting: _n_graphs(setting, rows) for setting in SETTINGS})


def _n_graphs(setting: Setting, rows: Sequence[OptimalityRow]) -> int:
    """Counts the graphs to close: one of each family if they are coarsened, else those in the rows."""
    own = _of(setting, rows)
    return N_SEALED if setting.n_units and own else len({row.graph for row in own})


def _of(setting: Setting, rows: Sequence[OptimalityRow]) -> list[OptimalityRow]:
    end = f"-in-{setting.n_units}" if setting.n_units else ""
    case = (setting.cluster, setting.granularity)
    return [row for row in rows if (row.cluster, row.granularity) == case and row.graph.endswith(end)]


def table(rows: Sequence[OptimalityRow]) -> str:
    """A row per budget and placer, of the graphs that are hard with that budget.

    Placers that stop by themselves stand under the least budget alone.
    """
    head = ["evaluations", "placer", "graphs", "optimal", "over the optimum, mean", "greatest", "CPU s, mean"]
    body = []
    hard = [row for row in rows if is_hard(row)]
    least = min((row.budget for row in hard), default=0)
    for budget, placer in axis((row.budget, row.placer) for row in hard):
        own = [row for row in hard if (row.budget, row.placer) == (budget, placer)]
        stops = all(row.evaluations < least for row in own)
        if stops and budget > least:
            continue
        found = np.array([row.found for row in own])
        mean, optimal = np.exp(np.log(found).mean()), (found <= 1 + LEVEL).mean()
        cells = [f"{optimal:.0%}", f"{mean:.4f}", f"{found.max():.3f}"]
        made = f"{np.mean([row.evaluations for row in own]):.0f}" if stops else str(budget)
        body.append([made, placer, str(len(own)), *cells, f"{np.mean([row.cpu_s for row in own]):.3f}"])
    return markdown_table([head, *body])


def closed_table(rows: Sequence[OptimalityRow], n_graphs: Mapping[Setting, int]) -> str:
    """A row per setting: how many graphs are closed, and how tight the bound is on them.

    Args:
        n_graphs: graphs that were to be closed.
    """
    head = ["cluster", "placed by", "ops", "units", "graphs", "closed", "one device is optimal"]
    head += ["bound over optimum, mean", "least"]
    body = []
    for setting, count in n_graphs.items():
        own = _of(setting, rows)
        if not own:
            continue
        by_graph = {row.graph: row for row in own}.values()
        how = f"group, {setting.n_units}" if setting.n_units else setting.granularity
        cells = [_range([row.ops for row in by_graph]), _range([row.n_units for row in by_graph])]
        cells += [str(count), str(len(by_graph)), str(sum(is_trivial(row) for row in by_graph))]
        bounds = np.array([row.bound for row in by_graph])
        tight = [f"{np.exp(np.log(bounds).mean()):.3f}", f"{bounds.min():.3f}"]
        body.append([setting.cluster, how, *cells, *tight])
    return markdown_table([head, *body])


def _range(values: Sequence[int]) -> str:
    least, greatest = min(values), max(values)
    return str(least) if least == greatest else f"{least} to {greatest}"
