"""Rows of the LP behind `assignment_bound`: the time and memory of a step, by kinds of devices."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import NamedTuple

import numpy as np

from agent.bounds.kept_tensors import Forest
from agent.bounds.kind_costs import KindCosts
from agent.bounds.path_kernels import longest_path
from agent.bounds.windows import heaviest_window
from graphs.system.array_types import FloatArray, IntArray


class AssignmentRow(NamedTuple):
    """A sum over units: a constant, what each unit adds on its kind, and what it adds with its parent's.

    Attributes:
        constant: what there is in any case.
        of_unit: by the kind of the unit, (n_units, n_kinds).
        along: by the kinds of the parent and the unit, (n_units, n_kinds, n_kinds); None = nothing.
    """

    constant: float
    of_unit: FloatArray
    along: FloatArray | None = None


def memory_rows(costs: KindCosts, forest: Forest, kept: IntArray) -> list[AssignmentRow]:
    """Makes a row for each kind: bytes that it holds for sure, over all its memory, less 1.

    Counted are resident bytes and, on a kind with one device, the kept tensors whose producer and reader are
    on it. Among several devices a tensor may be on its way.

    Args:
        kept: reads, int (n,), as of `kept_reads`.
    """
    reads, unit_of, n_units = costs.reads, costs.graph.unit_of, len(forest.parent)
    producer, reader = unit_of[reads.producer[kept]], unit_of[reads.reader[kept]]
    inside, joined = producer == reader, forest.between(producer, reader)
    # One read of each tensor, inside a unit if there is one.
    rank = np.where(inside, 0, np.where(joined, 1, 2))
    order = np.lexsort((rank, reads.tensor[kept]))
    _, first = np.unique(reads.tensor[kept][order], return_index=True)
    one = order[first]
    own, pair = one[inside[one]], one[joined[one]]
    in_unit = np.bincount(producer[own], reads.size[kept[own]], n_units)
    below = np.maximum(producer, reader)[pair]
    with_parent = np.bincount(below, reads.size[kept[pair]], n_units)
    rows = []
    for kind, n_devices in enumerate(costs.n_devices):
        capacity, alone = costs.memory[kind] * n_devices, n_devices == 1
        held = np.zeros((n_units, costs.n_kinds))
        held[:, kind] = (costs.resident + in_unit * alone) / capacity
        along = np.zeros((n_units, costs.n_kinds, costs.n_kinds))
        along[:, kind, kind] = with_parent * alone / capacity
        rows.append(AssignmentRow(-1.0, held, along))
    return rows


def tightest_rows(
    costs: KindCosts, forest: Forest, share: FloatArray
) -> Iterator[tuple[float, list[AssignmentRow]]]:
    """Makes the rows of seconds of each sort that ask for the longest step.

    Args:
        share: of each unit on each kind, (n_units, n_kinds); 0 to 1.

    Yields:
        The seconds that the tightest of the rows asks for, without transfers, and the rows.
    """
    of_op = share[costs.graph.unit_of]
    yield _tightest_window(costs, of_op)
    yield _tightest_split(costs, of_op)
    yield _longest_path(costs, forest, of_op)


def _tightest_window(costs: KindCosts, share: FloatArray) -> tuple[float, list[AssignmentRow]]:
    """On one kind runs the most work of the ops that run within some window."""
    windows = [heaviest_window(load, costs.head, costs.tail) for load in (costs.load * share).T]
    worst = max(windows)
    inside = (costs.head >= worst.since_s) & (costs.tail >= worst.after_s)
    around_s = worst.since_s + worst.after_s - costs.last_gap_s
    load = costs.load * inside[:, None]
    rows = [AssignmentRow(around_s, costs.only(kind, load)) for kind in range(costs.n_kinds)]
    return worst.least_s - costs.last_gap_s, rows


def _tightest_split(costs: KindCosts, share: FloatArray) -> tuple[float, list[AssignmentRow]]:
    """Before an op runs the most work of its ancestors on one kind, after it that of its descendants."""
    split, before, after = costs.splits
    load = costs.load * share
    own_s = (costs.seconds * share).sum(axis=1)[split]
    step_s = (before @ load).max(axis=1) + own_s + (after @ load).max(axis=1) - 2 * costs.last_gap_s
    worst = int(step_s.argmax())
    is_split = np.arange(costs.graph.n_ops) == split[worst]
    own = costs.per_unit(costs.seconds * is_split[:, None])
    kinds = range(costs.n_kinds)
    first = [costs.only(kind, costs.load * before[worst][:, None]) for kind in kinds]
    second = [costs.only(kind, costs.load * after[worst][:, None]) for kind in kinds]
    gaps_s = 2 * costs.last_gap_s
    rows = [AssignmentRow(-gaps_s, first[one] + own + second[two]) for one, two in product(kinds, kinds)]
    return float(step_s[worst]), rows


def _longest_path(costs: KindCosts, forest: Forest, share: FloatArray) -> tuple[float, list[AssignmentRow]]:
    """The ops of a path run one after the other; where two of them are apart, a transfer is between them."""
    seconds = (costs.seconds * share).sum(axis=1)
    path = longest_path(costs.graph.edges, seconds)
    on_path = np.zeros(costs.graph.n_ops, dtype=bool)
    on_path[path] = True
    row = AssignmentRow(
        0.0, costs.per_unit(costs.seconds * on_path[:, None]), path_transfers_s(costs, forest, path)
    )
    return float(seconds[path].sum()), [row]


def path_transfers_s(costs: KindCosts, forest: Forest, path: IntArray) -> FloatArray:
    """Seconds of the transfers between the ops of a path, along the forest, (n_units, n_kinds, n_kinds)."""
    reads, n_ops, unit_of = costs.reads, costs.graph.n_ops, costs.graph.unit_of
    smallest_first = np.argsort(reads.size, kind="stable")
    follows = np.full(n_ops, -1)
    follows[path[:-1]] = path[1:]
    on_path = smallest_first[follows[reads.producer[smallest_first]] == reads.reader[smallest_first]]
    last = np.full(n_ops, -1)
    last[reads.producer[on_path]] = on_path
    largest = last[last >= 0]
    producer, reader = unit_of[reads.producer[largest]], unit_of[reads.reader[largest]]
    joined = forest.between(producer, reader)
    seconds = costs.sent_s(reads.size[largest[joined]]) + costs.links[2]
    return forest.transfers_s(producer[joined], reader[joined], seconds)
