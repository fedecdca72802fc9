"""Rows of the linear program behind `assignment_bound`: what the step takes at least, by kinds of devices."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agent.evaluation.path_kernels import before_and_after, longest_path
from agent.evaluation.windows import heaviest_window
from envs.problem import Problem
from graphs.limits import ROUNDING
from graphs.op_graph import FloatArray, IntArray, OpGraph

MAX_SPLITS = 32
"""Ops of the critical path at which the step is split in two."""


class Row(NamedTuple):
    """States that the step takes at least `least_s` and the seconds of the units on their kinds.

    Attributes:
        least_s: seconds in any case.
        seconds: of each unit on each kind, (n_units, n_kinds).
    """

    least_s: float
    seconds: FloatArray


@dataclass(frozen=True, eq=False)
class KindCosts:
    """A problem by kinds of devices; those of a kind have equal memory and take equally long for every op.

    Attributes:
        graph: the graph.
        n_devices: of each kind, int (n_kinds,).
        seconds: of each op on each kind, (n_ops, n_kinds).
        gap_s: seconds that a device rests after an op.
        memory: bytes of one device of each kind, (n_kinds,).
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """

    graph: OpGraph
    n_devices: IntArray
    seconds: FloatArray
    gap_s: float
    memory: FloatArray
    head: FloatArray
    tail: FloatArray

    @cached_property
    def resident(self) -> FloatArray:
        """Resident bytes of each unit, (n_units,)."""
        return self.per_unit(self.graph.resident_bytes[:, None])[:, 0]

    @cached_property
    def load(self) -> FloatArray:
        """Seconds that each op occupies a kind's devices, over their number, (n_ops, n_kinds)."""
        occupied: FloatArray = np.where(self.seconds > 0, self.seconds + self.gap_s, 0.0)
        return occupied / self.n_devices

    @property
    def last_gap_s(self) -> float:
        """Seconds that the rest after the last op of a device is at most; sums of rests are rounded."""
        return self.gap_s * (1 + ROUNDING)

    @cached_property
    def splits(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Ops of the critical path, int (n_splits,), and their ancestors and descendants.

        The latter are 0 or 1, (n_splits, n_ops) each.
        """
        path = longest_path(self.graph.edges, self.seconds.min(axis=1))
        chosen = path[np.unique(np.linspace(0, len(path) - 1, MAX_SPLITS).astype(np.int64))]
        return chosen, *before_and_after(self.graph.edges, chosen, self.graph.n_ops)

    def per_unit(self, values: FloatArray) -> FloatArray:
        """Sums of the ops of each unit, (n_units, n_columns), from those of the ops, (n_ops, n_columns)."""
        n_units = len(self.graph.units)
        columns = [np.bincount(self.graph.unit_of, column, n_units) for column in values.T]
        return np.stack(columns, axis=1)

    def only(self, kind: int, values: FloatArray) -> FloatArray:
        """Sums of the ops of each unit on one kind, 0 on the others, (n_units, n_kinds)."""
        return self.per_unit(np.where(np.arange(len(self.memory)) == kind, values, 0.0))


def kind_costs(problem: Problem, head: FloatArray, tail: FloatArray) -> KindCosts:
    """Groups the devices of a problem by kind.

    Args:
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """
    columns = np.vstack([problem.op_seconds, problem.cluster.memory_bytes])
    first: dict[bytes, int] = {}
    own = [first.setdefault(column.tobytes(), device) for device, column in enumerate(columns.T)]
    chosen, n_devices = np.unique(own, return_counts=True)
    gap_s, memory = float(problem.cluster.op_gap_s), problem.cluster.memory_bytes[chosen]
    return KindCosts(problem.graph, n_devices, problem.op_seconds[:, chosen], gap_s, memory, head, tail)


def tightest_rows(costs: KindCosts, share: FloatArray) -> Iterator[tuple[float, list[Row]]]:
    """Makes the rows of each sort that ask for the longest step.

    Args:
        share: of each unit on each kind, (n_units, n_kinds); 0 to 1.

    Yields:
        The seconds that the tightest of the rows asks for, and the rows.
    """
    of_op = share[costs.graph.unit_of]
    yield _tightest_window(costs, of_op)
    yield _tightest_split(costs, of_op)
    yield _longest_path(costs, of_op)


def _tightest_window(costs: KindCosts, share: FloatArray) -> tuple[float, list[Row]]:
    """On one kind runs the most work of the ops that run within some window."""
    windows = [heaviest_window(load, costs.head, costs.tail) for load in (costs.load * share).T]
    worst = max(windows)
    inside = (costs.head >= worst.since_s) & (costs.tail >= worst.after_s)
    around_s = worst.since_s + worst.after_s - costs.last_gap_s
    load = costs.load * inside[:, None]
    rows = [Row(around_s, costs.only(kind, load)) for kind in range(len(costs.memory))]
    return worst.least_s - costs.last_gap_s, rows


def _tightest_split(costs: KindCosts, share: FloatArray) -> tuple[float, list[Row]]:
    """Before an op runs the most work of its ancestors on one kind, after it that of its descendants."""
    split, before, after = costs.splits
    load = costs.load * share
    own_s = (costs.seconds * share).sum(axis=1)[split]
    step_s = (before @ load).max(axis=1) + own_s + (after @ load).max(axis=1) - 2 * costs.last_gap_s
    worst = int(step_s.argmax())
    is_split = np.arange(costs.graph.n_ops) == split[worst]
    own = costs.per_unit(costs.seconds * is_split[:, None])
    kinds = range(len(costs.memory))
    first = [costs.only(kind, costs.load * before[worst][:, None]) for kind in kinds]
    second = [costs.only(kind, costs.load * after[worst][:, None]) for kind in kinds]
    rows = [Row(-2 * costs.last_gap_s, first[one] + own + second[two]) for one, two in product(kinds, kinds)]
    return float(step_s[worst]), rows


def _longest_path(costs: KindCosts, share: FloatArray) -> tuple[float, list[Row]]:
    """The ops of a path run one after the other."""
    seconds = (costs.seconds * share).sum(axis=1)
    path = longest_path(costs.graph.edges, seconds)
    on_path: NDArray[np.bool_] = np.zeros(costs.graph.n_ops, dtype=bool)
    on_path[path] = True
    return float(seconds[path].sum()), [Row(0.0, costs.per_unit(costs.seconds * on_path[:, None]))]
