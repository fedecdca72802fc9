"""The tables of experiments whose rows other commands make; their pages say which."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.experiments.equal_time.paired import LEVEL
from agent.experiments.rows import axis, markdown_table, number_cell, read_rows


@dataclass(frozen=True)
class MovesRow:
    """Step times that `refine` finds without and with moves of whole modules, in equal time."""

    graph: str
    family: str
    cluster: str
    seconds: float
    before_s: float
    after_s: float


def moves_tables(file: Path) -> Iterator[str]:
    """Yields what moves of whole modules gain."""
    groups: dict[tuple[str, float], list[MovesRow]] = defaultdict(list)
    for row in read_rows(file, MovesRow):
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


@dataclass(frozen=True)
class CoarseningRow:
    """The graphs of a family, placed by one placer in at most so many groups.

    Attributes:
        coarse_over_fine: step time of the coarse graph over that of its ops, for the same placement,
            geometric mean; None without graphs.
        worst: that of one graph, the furthest from 1.
        found_over_op_by_op: step time of the ops over that of what the placer finds op by op, geometric mean;
            None without graphs and for `random`.
    """

    groups: int
    family: str
    graphs: int
    placer: str
    coarse_over_fine: float | None
    worst: float | None
    found_over_op_by_op: float | None


def coarsening_tables(file: Path) -> Iterator[str]:
    """Yields what placing groups of ops costs, and how wrong the step time of the coarse graph is."""
    rows = read_rows(file, CoarseningRow)
    by_case = {(row.family, row.placer, row.groups): row for row in rows}
    groups = axis(row.groups for row in rows)
    families = axis(row.family for row in rows if row.graphs)
    for name, placers in {
        "found_over_op_by_op": ("heft", "m-etf"),
        "coarse_over_fine": ("heft", "m-etf", "random"),
    }.items():
        columns = [(placer, n) for placer in placers for n in groups]
        cells = {
            family: [number_cell(getattr(by_case[family, *column], name)) for column in columns]
            for family in families
        }
        head = ["family", *(f"{placer}, {n}" for placer, n in columns)]
        yield markdown_table([head, *([family, *own] for family, own in cells.items())])


@dataclass(frozen=True)
class GranularityRow:
    """Graphs of a family, placed by one placer at a granularity: means of `summary.csv`."""

    granularity: str
    family: str
    placer: str
    graphs: int
    ratio_to_single: float
    wall_s: float


def granularity_tables(file: Path) -> Iterator[str]:
    """Yields what whole modules cost, by family."""
    rows = read_rows(file, GranularityRow)
    placers = ("heft", "annealing", "local-search", "policy", "policy-refine")
    by_case = {(row.family, row.granularity, row.placer): row for row in rows}
    columns = [(level, placer) for level in ("op", "module") for placer in placers]
    head = ["family", "graphs", *(f"{placer}, {level}" for level, placer in columns)]
    body = []
    for family in axis(row.family for row in rows):
        own = [by_case[family, *column] for column in columns]
        body.append([family, str(own[0].graphs), *(f"{row.ratio_to_single:.3f}" for row in own)])
    yield markdown_table([head, *body])


@dataclass(frozen=True)
class AblationRow:
    """A variant of the training over the full model, with one placer on graphs of some families."""

    variant: str
    flags: str
    families: str
    placer: str
    ratio: float
    low: float
    high: float
    spread_over_trainings: float | None


def ablation_tables(file: Path) -> Iterator[str]:
    """Yields what each part of the policy and its training is worth."""
    rows = read_rows(file, AblationRow)
    by_case = {(row.variant, row.placer, row.families): row for row in rows}
    columns = axis((row.placer, row.families) for row in rows)
    names = {"policy": "one decode", "policy-sample": "17 decodes"}
    head = ["variant", *(f"{families}, {names[placer]}" for placer, families in columns)]
    variants = axis(row.variant for row in rows)[1:]
    body = [
        [variant, *(_ablation_cell(by_case[variant, *column]) for column in columns)] for variant in variants
    ]
    yield markdown_table([head, *body])


def _ablation_cell(row: AblationRow) -> str:
    spread = "" if row.spread_over_trainings is None else f"; ± {row.spread_over_trainings:.3f}"
    return f"{row.ratio:.3f} ({row.low:.3f} to {row.high:.3f}{spread})"


@dataclass(frozen=True)
class FinetuningRow:
    """The best step time, over that of one device, of a start or placer after some seconds of training."""

    graph: str
    placed_by: str
    seconds: int | None
    ratio_to_single: float | None


def finetuning_tables(file: Path) -> Iterator[str]:
    """Yields what the shipped policy is worth as a start of a training for one graph."""
    rows = read_rows(file, FinetuningRow)
    ratio_of = {(row.graph, row.placed_by, row.seconds): row.ratio_to_single for row in rows}
    times = sorted({row.seconds for row in rows if row.seconds is not None})
    starts = axis(row.placed_by for row in rows if row.seconds is not None)
    others = axis(row.placed_by for row in rows if row.seconds is None)
    table = [["graph", "from", *(f"{second} s" for second in times), *others]]
    for graph in axis(row.graph for row in rows):
        placed = [ratio_of[graph, name, None] for name in others]
        for start in starts:
            curve = [ratio_of[graph, start, second] for second in times]
            table.append(
                [graph, start, *("" if ratio is None else f"{ratio:.3f}" for ratio in curve + placed)]
            )
    yield markdown_table(table)


@dataclass(frozen=True)
class SpeedRow:
    """A speed with one thread and with two, as it was printed."""

    figure: str
    one_thread: str
    two_threads: str


def speed_tables(file: Path) -> Iterator[str]:
    """Yields how fast training and decoding are."""
    yield markdown_table([["", "one thread", "two threads"], *map(astuple, read_rows(file, SpeedRow))])


@dataclass(frozen=True)
class DecodingRow:
    """The speed of decoding: processor time of a decision, encoding included, and the same by torch."""

    graph: str
    walks: int
    features: str
    us: float
    torch_us: float


def decoding_tables(file: Path) -> Iterator[str]:
    """Yields how long a decision of a policy takes."""
    head = ["graph", "walks", "features", "us a decision", "scored by torch, us", "ratio"]
    body = [
        [
            row.graph,
            str(row.walks),
            row.features,
            f"{row.us:.1f}",
            f"{row.torch_us:.1f}",
            f"{row.torch_us / row.us:.1f}",
        ]
        for row in read_rows(file, DecodingRow)
    ]
    yield markdown_table([head, *body])


@dataclass(frozen=True)
class NeighbourhoodRow:
    """The step that a search finds whose moves stay in chosen neighbourhoods, or that a placer finds."""

    graph: str
    family: str
    ops: int
    cluster: str
    placer: str
    seconds: float
    seed: int
    step_s: float
    feasible: bool
    evaluations: int
    cpu_s: float


def neighbourhoods_tables(file: Path) -> Iterator[str]:
    """Yields each placer over `refine`, and choices by networks over others."""
    rows = read_rows(file, NeighbourhoodRow)
    budgets = axis(row.seconds for row in rows)
    first = [(name, "refine") for name in axis(row.placer for row in rows) if name != "refine"]
    others = ("all units", "any kind", "bandit")
    second = [("learned", other) for other in (*others, "random weights")]
    second += [("learned moves", other) for other in (*others, "random moves")]
    for title, pairs in (("over refine", first), ("", second)):
        body = [
            [own if title else f"{own} over {other}", *(_over(rows, own, other, each) for each in budgets)]
            for own, other in pairs
        ]
        yield markdown_table([[title, *(f"{each:g} s" for each in budgets)], *body])


def _over(rows: Sequence[NeighbourhoodRow], placer: str, other: str, seconds: float) -> str:
    """Formats the ratio of two placers with its interval, on what both placed with the same seed."""
    found = {(row.graph, row.cluster, row.seed, row.placer): row for row in rows if row.seconds == seconds}
    families: dict[str, dict[tuple[str, str], list[float]]] = defaultdict(lambda: defaultdict(list))
    for (graph, cluster, seed, name), row in found.items():
        beside = found.get((graph, cluster, seed, other))
        if name == placer and beside and row.feasible and beside.feasible:
            families[row.family][graph, cluster].append(float(np.log(row.step_s / beside.step_s)))
    return str(nested_interval([list(graphs.values()) for graphs in families.values()])) if families else "-"
