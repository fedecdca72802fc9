"""The ops that an episode visits, their order, and whether they can be simulated one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from graphs.orders import ORDERS
from graphs.system.array_types import IntArray

if TYPE_CHECKING:
    from envs.problem import Problem

RANDOM = "random"
"""The one order that is drawn anew for each episode."""


class VisitOrders:
    """Visits of episodes over given problems; those of an order that is not drawn are found once.

    Args:
        improving: visit every placement unit once a pass, instead of every op once.
    """

    def __init__(
        self, problems: Sequence[Problem], orders: Sequence[str], *, improving: bool, passes: int
    ) -> None:
        self._problems, self._orders = problems, orders
        self._improving, self._passes = improving, passes
        self._found: dict[tuple[int, int], tuple[IntArray, bool]] = {}

    def get(self, problem: int, order: int, rng: np.random.Generator) -> tuple[IntArray, bool]:
        """Finds the visits of an episode over a problem in an order (indices).

        Args:
            rng: used by the order `random` alone.

        Returns:
            Ops in the order they are visited, int (n_visits,), and whether `is_incremental` holds for them.
        """
        key = (problem, order)
        if self._orders[order] == RANDOM or key not in self._found:
            self._found[key] = self._visits(self._problems[problem], self._orders[order], rng)
        return self._found[key]

    def _visits(self, problem: Problem, order: str, rng: np.random.Generator) -> tuple[IntArray, bool]:
        visits = ORDERS[order](problem.graph, rng)
        if not self._improving:
            return visits, is_incremental(problem, visits)
        _, first = np.unique(problem.graph.unit_of[visits], return_index=True)
        return np.tile(visits[np.sort(first)], self._passes), False


def is_incremental(problem: Problem, visits: IntArray) -> bool:
    """Says whether the visited ops can be simulated by adding one op at a time.

    It can in program order under a `program` schedule, when all updates come after the last visited op and
    every parameter and input is decided before it is read.

    Args:
        visits: ops in the order they are visited, int (n_visits,).
    """
    graph = problem.graph
    compute = np.flatnonzero(graph.is_compute)
    if problem.cluster.schedule != "program" or not np.array_equal(visits, compute):
        return False
    followers = np.flatnonzero(~graph.is_source & ~graph.is_compute)
    if len(followers) and followers[0] < compute[-1]:
        return False
    decided_at = np.full(len(graph.units), graph.n_ops)
    np.minimum.at(decided_at, graph.unit_of[compute], compute)
    producer, consumer = graph.edges.T
    from_source = graph.is_source[producer] & graph.is_compute[consumer]
    return bool((decided_at[graph.unit_of[producer[from_source]]] <= consumer[from_source]).all())
