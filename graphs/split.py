"""The split of graphs by use: to train on, to choose among policies, to report on."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from graphs.op_graph import OpGraph


@dataclass(frozen=True)
class Split:
    """Graphs by use; `validation` chooses among policies, `held_out` is only ever reported on."""

    train: tuple[OpGraph, ...]
    validation: tuple[OpGraph, ...]
    held_out: tuple[OpGraph, ...]


def split_graphs(graphs: Sequence[OpGraph], *, holdout: float, validation: float) -> Split:
    """Splits each family by position: of `k = round(1 / holdout)` graphs the last is held out.

    Of the graphs left, every `round((1 - holdout) / validation)`-th, from the second on, is for validation:
    with shares of 1/4 and 1/8, 24 graphs give 15, 3 and 6. A share of 0 takes none. The first graph of a
    family is always trained on.
    """
    by_family = defaultdict(list)
    for graph in graphs:
        by_family[graph.family].append(graph)
    parts: tuple[list[OpGraph], list[OpGraph], list[OpGraph]] = ([], [], [])
    most = len(graphs) + 1
    period = round(min(1 / holdout, most)) if holdout else 0
    stride = round(min((1 - holdout) / validation, most)) if validation else 0
    for members in by_family.values():
        held_out = [graph for index, graph in enumerate(members) if period and index % period == period - 1]
        rest = [graph for index, graph in enumerate(members) if not (period and index % period == period - 1)]
        chosen = [graph for index, graph in enumerate(rest) if stride > 1 and index % stride == 1]
        parts[0].extend(graph for graph in rest if graph not in chosen)
        parts[1].extend(chosen)
        parts[2].extend(held_out)
    return Split(tuple(parts[0]), tuple(parts[1]), tuple(parts[2]))
