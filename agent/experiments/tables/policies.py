"""Tables of the pages on policies and their training."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from agent.experiments.launcher import markdown_table
from agent.experiments.orders.report import (
    baseline_table,
    equal_time_table,
    families_of,
    quality_table,
    verdict_table,
)
from agent.experiments.orders.rows import OrderRow, Point
from agent.experiments.tables.page import page, read_csv, read_rows


@page
def orders() -> Iterator[str]:
    """Prints traversal orders with all features."""
    yield from _orders("rollout")


@page
def orders_equal_features() -> Iterator[str]:
    """Prints traversal orders where all have the same features."""
    yield from _orders("prefix")


@page
def orders_reinforcement() -> Iterator[str]:
    """Prints traversal orders of policies that improve placements and learn by reinforcement alone."""
    yield from _orders("improve")


def _orders(arm: str) -> Iterator[str]:
    by_family = families_of(row for row in read_rows("orders.csv.gz", OrderRow) if row.arm == arm)
    yield quality_table(by_family)
    yield verdict_table(by_family)
    yield baseline_table(by_family)
    yield equal_time_table([point for point in read_rows("orders_curves.csv.gz", Point) if point.arm == arm])


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


@page
def ablation() -> Iterator[str]:
    """Prints what each part of the policy and its training is worth."""
    rows = read_rows("ablation.csv", AblationRow)
    by_case = {(row.variant, row.placer, row.families): row for row in rows}
    columns = list(dict.fromkeys((row.placer, row.families) for row in rows))
    names = {"policy": "one decode", "policy-sample": "17 decodes"}
    head = ["variant", *(f"{families}, {names[placer]}" for placer, families in columns)]
    variants = list(dict.fromkeys(row.variant for row in rows))[1:]
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


@page
def finetuning() -> Iterator[str]:
    """Prints what the shipped policy is worth as a start of a training for one graph."""
    rows = read_rows("finetuning.csv", FinetuningRow)
    ratio_of = {(row.graph, row.placed_by, row.seconds): row.ratio_to_single for row in rows}
    times = sorted({row.seconds for row in rows if row.seconds is not None})
    starts = list(dict.fromkeys(row.placed_by for row in rows if row.seconds is not None))
    others = list(dict.fromkeys(row.placed_by for row in rows if row.seconds is None))
    table = [["graph", "from", *(f"{second} s" for second in times), *others]]
    for graph in dict.fromkeys(row.graph for row in rows):
        placed = [ratio_of[graph, name, None] for name in others]
        for start in starts:
            curve = [ratio_of[graph, start, second] for second in times]
            table.append(
                [graph, start, *("" if ratio is None else f"{ratio:.3f}" for ratio in curve + placed)]
            )
    yield markdown_table(table)


@page
def speed() -> Iterator[str]:
    """Prints how fast training and decoding are."""
    body = [[line["figure"], line["one_thread"], line["two_threads"]] for line in read_csv("speed.csv")]
    yield markdown_table([["", "one thread", "two threads"], *body])
