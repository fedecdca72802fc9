"""Tables of the pages on lower bounds and on coarse graphs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from agent.experiments import coarsening as coarse
from agent.experiments.bounds import BoundRow
from agent.experiments.launcher import markdown_table
from agent.experiments.tables.page import mean_cell, page, read_rows

ALL = "all"
GRANULARITIES = ("op", "module", "block", "layer")
SCARCE = ("gpu+cpu", "a100+v100")
"""Clusters with two kinds of devices, the faster of which gets little memory."""


@page
def bounds() -> Iterator[str]:
    """Prints how far what `refine` finds is from the bound, and what transfers add to the bound."""
    rows = {level: read_rows(f"bounds_{level}.csv", BoundRow) for level in GRANULARITIES}
    columns = {"gain of transfers": (rows["op"], "gain")}
    columns |= {f"refine over bound, {level}": (own, "refined") for level, own in rows.items()}
    yield families_table(columns)
    head = ["placed by", "seconds of a bound, mean", "most"]
    seconds = {level: [row.seconds for row in own] for level, own in rows.items()}
    body = [[level, f"{sum(own) / len(own):.3f}", f"{max(own):.3f}"] for level, own in seconds.items()]
    yield markdown_table([head, *body])


@page
def bounds_memory() -> Iterator[str]:
    """Prints what memory adds to the bound where the fastest device has little of it."""
    columns = {
        f"{cluster}, {level}": (read_rows(f"bounds_memory_{cluster}_{level}.csv", BoundRow), "memory_gain")
        for cluster in SCARCE
        for level in GRANULARITIES[:2]
    }
    most = [f"{max(row.memory_gain for row in rows):.3f}" for rows, _ in columns.values()]
    yield f"{families_table(columns)}\n{' | '.join(['| greatest', '', *most])} |"


def families_table(columns: Mapping[str, tuple[Sequence[BoundRow], str]]) -> str:
    """Formats geometric means: a row per family and one of all.

    Args:
        columns: rows, and the attribute that is averaged, by the head of the column.
    """
    first, _ = next(iter(columns.values()))
    families = list(dict.fromkeys(row.family for row in first))
    body = []
    for family in (*families, ALL):
        own = [[row for row in rows if family in (row.family, ALL)] for rows, _ in columns.values()]
        means = [
            mean_cell(getattr(row, attribute) for row in rows)
            for rows, (_, attribute) in zip(own, columns.values(), strict=True)
        ]
        body.append([family, str(len(own[0])), *means])
    return markdown_table([["family", "graphs", *columns], *body])


@page
def coarsening() -> Iterator[str]:
    """Prints what placing groups of ops costs, and how wrong the step time of the coarse graph is."""
    rows = read_rows("coarsening.csv", coarse.CoarseningRow)
    by_case = {(row.family, row.placer, row.groups): row for row in rows}
    groups = list(dict.fromkeys(row.groups for row in rows))
    families = [
        row.family for row in rows if row.graphs and (row.placer, row.groups) == ("heft", max(groups))
    ]
    tables = {"found_over_op_by_op": ("heft", "m-etf"), "coarse_over_fine": ("heft", "m-etf", "random")}
    for name, placers in tables.items():
        columns = [(placer, n) for placer in placers for n in groups]
        head = ["family", *(f"{placer}, {n}" for placer, n in columns)]
        body = []
        for family in families:
            cells = [getattr(by_case[family, *column], name) for column in columns]
            body.append([family, *("" if cell is None else f"{cell:.3f}" for cell in cells)])
        yield markdown_table([head, *body])
