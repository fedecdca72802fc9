"""Tables of the pages that compare placers."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.experiments.equal_time.paired import LEVEL, Paired
from agent.experiments.equal_time.sealed import STANDARD
from agent.experiments.launcher import markdown_table
from agent.experiments.optimality.problems import SETTINGS
from agent.experiments.optimality.rows import OptimalityRow, closed_table
from agent.experiments.optimality.rows import table as optima_table
from agent.experiments.tables.page import page, read_rows

SEARCHES = ("local-search", "annealing", "rollout-refine", "policy-refine")
"""Placers that use a whole budget, compared with `refine`."""
STOPPING = ("heft", "m-etf", "rollout", "policy", "rollout-beam", "policy-beam")
"""Placers that stop by themselves."""
SHORTEST_S = 0.1
"""The least budget in which `refine` scored all heuristics first, when the rows were made."""


@page
def equal_time() -> Iterator[str]:
    """Prints placers in equal time on four V100s."""
    rows = read_rows("equal_time.csv", Paired)
    yield budgets_table(rows, SEARCHES)
    yield stopping_table(rows, STOPPING)


@page
def equal_time_other_placers() -> Iterator[str]:
    """Prints the other placers in equal time on four V100s."""
    rows = read_rows("equal_time_other_placers.csv", Paired)
    searches = ("exact", "cross-entropy")
    yield budgets_table(rows, searches)
    yield stopping_table(rows, [name for name in _placers(rows) if name not in (*searches, "refine")])


@page
def equal_time_slow_links() -> Iterator[str]:
    """Prints placers in equal time on four A100s with slow links."""
    rows = read_rows("equal_time_slow_links.csv", Paired)
    yield budgets_table(rows, SEARCHES)
    yield stopping_table(rows, STOPPING)


@page
def equal_time_recurrent() -> Iterator[str]:
    """Prints placers in equal time on recurrent graphs and slow links."""
    yield budgets_table(read_rows("equal_time_recurrent.csv", Paired), (*SEARCHES, "policy"))


@page
def equal_time_large() -> Iterator[str]:
    """Prints placers in equal time on graphs of thousands of ops and slow links."""
    yield budgets_table(read_rows("equal_time_large.csv", Paired), (*SEARCHES, "policy"))


def budgets_table(rows: Sequence[Paired], placers: Sequence[str]) -> str:
    """Formats step times over the baseline's: a row per placer, a column per budget, and the graphs won."""
    budgets = [seconds for seconds in dict.fromkeys(row.seconds for row in rows) if seconds >= SHORTEST_S]
    by_case = {(row.placer, row.seconds): row for row in rows}
    body = []
    for placer in (name for name in placers if name in _placers(rows)):
        own = [by_case[placer, seconds] for seconds in budgets]
        body.append([placer, *(row.cell("ratio") for row in own), f"{own[-1].wins} : {own[-1].losses}"])
    heads = [f"{seconds:g} s" for seconds in budgets]
    return markdown_table([["placer", *heads, f"won : lost, {heads[-1]}"], *body])


def stopping_table(rows: Sequence[Paired], placers: Sequence[str]) -> str:
    """Formats placers that stop by themselves, over the baseline with the next budget above their time."""
    body = []
    for placer in placers:
        own = sorted((row for row in rows if row.placer == placer), key=lambda row: row.seconds)
        row = next(row for row in own if row.cpu_s <= row.seconds and row.seconds >= SHORTEST_S)
        body.append(
            [placer, f"{row.cpu_s:.3f}", f"{row.to_single:.3f}", f"{row.seconds:g} s", row.cell("ratio")]
        )
    head = ["placer", "processor seconds, mean", "over one device", "budget of refine", "over refine"]
    return markdown_table([head, *body])


def _placers(rows: Sequence[Paired]) -> list[str]:
    return list(dict.fromkeys(row.placer for row in rows))


@dataclass(frozen=True)
class MovesRow:
    """Step times that `refine` finds without and with moves of whole modules, in equal time."""

    graph: str
    family: str
    cluster: str
    seconds: float
    before_s: float
    after_s: float


@page
def module_moves() -> Iterator[str]:
    """Prints what moves of whole modules gain."""
    groups: dict[tuple[str, float], list[MovesRow]] = defaultdict(list)
    for row in read_rows("module_moves.csv", MovesRow):
        kind = "large" if row.family.startswith("large-") else "recurrent"
        groups[f"{kind}, all", row.seconds].append(row)
        groups[f"{kind}, {row.family.removeprefix('large-')}", row.seconds].append(row)
    body = [[name, f"{seconds:g} s", *_moves_cells(own)] for (name, seconds), own in groups.items()]
    yield markdown_table([["graphs", "budget", "number", "with over without", "won : lost"], *body])


def _moves_cells(rows: Sequence[MovesRow]) -> list[str]:
    families: dict[str, list[list[float]]] = defaultdict(list)
    for row in rows:
        families[row.family].append([float(np.log(row.after_s / row.before_s))])
    logs = np.array([seeds for graphs in families.values() for seeds in graphs])
    ratio = nested_interval(list(families.values()))
    cell = str(ratio) if len(families) > 1 else f"{ratio.mean:.3f}"
    return [str(len(rows)), cell, f"{(logs < -LEVEL).sum()} : {(logs > LEVEL).sum()}"]


@page
def optimality() -> Iterator[str]:
    """Prints how far from optimal placers are, and how tight the bound is, on problems that are closed."""
    rows = read_rows("optimality.csv", OptimalityRow)
    n_graphs = {}
    for setting in SETTINGS:
        own = {
            row.graph
            for row in rows
            if (row.cluster, row.granularity) == (setting.cluster, setting.granularity)
        }
        if setting.n_units:
            n_graphs[setting] = len(STANDARD)
        elif own:
            n_graphs[setting] = len(own)
    yield optima_table(rows)
    yield closed_table(rows, n_graphs)


@dataclass(frozen=True)
class GranularityRow:
    """Graphs of a family, placed by one placer at a granularity: means of `summary.csv`."""

    granularity: str
    family: str
    placer: str
    graphs: int
    ratio_to_single: float
    wall_s: float


@page
def granularity() -> Iterator[str]:
    """Prints what whole modules cost, by family."""
    rows = read_rows("granularity.csv", GranularityRow)
    placers = ("heft", "annealing", "local-search", "policy", "policy-refine")
    by_case = {(row.family, row.granularity, row.placer): row for row in rows}
    columns = [(level, placer) for level in ("op", "module") for placer in placers]
    head = ["family", "graphs", *(f"{placer}, {level}" for level, placer in columns)]
    body = []
    for family in dict.fromkeys(row.family for row in rows):
        own = [by_case[family, *column] for column in columns]
        body.append([family, str(own[0].graphs), *(f"{row.ratio_to_single:.3f}" for row in own)])
    yield markdown_table([head, *body])
