"""Picks the order of a graph by its shape: a small tree, judged on families that it was not fitted to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, dataclass
from typing import Any

import numpy as np

from agent.experiments.orders.statistics import OrderScores
from graphs.op_graph import OpGraph
from graphs.order_rule import FEATURES, OrderRule, Question
from graphs.shape import shape_of
from graphs.system.array_types import FloatArray, IntArray

Choice = Callable[[FloatArray, FloatArray, FloatArray], IntArray]
"""Fitted to shapes and logarithms, chooses an order for other shapes."""
TOPO = "topo"
ALWAYS_TOPO, BEST_OF_OTHERS, TREE = "always topo", "best of the other families", "tree by shape"
"""Ways to choose an order; where two do equally well, the one that comes first is taken."""
DEPTH = 2
"""Questions that the tree asks at most."""
LEVEL = 1e-3
"""Orders whose steps differ by less, as a share, are equally good."""


@dataclass(frozen=True)
class Judgement:
    """The quality of a way to choose orders, on graphs of families that it was not fitted to.

    Attributes:
        picks_best: share of graphs for which it picks an order that is as good as the best.
        over_best, over_topo: geometric means of the step time over the best order's, and over topo's.
    """

    name: str
    picks_best: float
    over_best: float
    over_topo: float


@dataclass(frozen=True)
class Cases:
    """Graphs that were placed in every order.

    Attributes:
        family: of each graph, (n_graphs,).
        shapes: float (n_graphs, n_features).
        logs: of the step time over that of one device, (n_graphs, n_orders).
    """

    orders: tuple[str, ...]
    family: tuple[str, ...]
    shapes: FloatArray
    logs: FloatArray


def cases_of(by_family: Mapping[str, OrderScores], graphs: Mapping[str, OpGraph]) -> Cases:
    """Arranges the scores of families by graph; those that lack an order that others have are left out.

    Args:
        graphs: by name; a score's graph is named `GRAPH on CLUSTER`.
    """
    orders = max((scores.orders for scores in by_family.values()), key=len)
    family, shapes, logs = [], [], []
    for name, scores in by_family.items():
        if set(scores.orders) != set(orders):
            continue
        columns = [scores.orders.index(order) for order in orders]
        for where, row in zip(scores.graphs, scores.by_graph, strict=True):
            family.append(name)
            shapes.append(astuple(shape_of(graphs[where.partition(" on ")[0]])))
            logs.append(row[columns])
    return Cases(orders, tuple(family), np.array(shapes, dtype=np.float64), np.array(logs))


def judge(cases: Cases) -> list[Judgement]:
    """Compares the tree with one order for all: always topo, or the best of the other families."""
    chosen = {
        ALWAYS_TOPO: np.full(len(cases.logs), cases.orders.index(TOPO)),
        BEST_OF_OTHERS: _left_out(cases, _mean_choice),
        TREE: _left_out(cases, _tree_choice),
    }
    return [_judgement(cases, name, orders) for name, orders in chosen.items()]


def best_rule(cases: Cases, judged: Sequence[Judgement]) -> OrderRule:
    """The choice that lost least on families left out of its fit, fitted to all of them."""
    best = min(judged, key=lambda each: each.over_best)
    if best.name == TREE:
        return fitted_tree(cases)
    return TOPO if best.name == ALWAYS_TOPO else cases.orders[int(cases.logs.mean(axis=0).argmin())]


def fitted_tree(cases: Cases) -> OrderRule:
    """The tree that is fitted to all families; questions whose answers pick the same order are left out."""
    tree = _fit(cases.shapes, cases.logs).tree_

    def rule(node: int) -> OrderRule:
        if tree.children_left[node] == tree.children_right[node]:
            return cases.orders[int(tree.value[node].argmin())]
        if_so, otherwise = rule(tree.children_left[node]), rule(tree.children_right[node])
        if if_so == otherwise:
            return if_so
        return Question(FEATURES[tree.feature[node]], float(tree.threshold[node]), if_so, otherwise)

    return rule(0)


def _judgement(cases: Cases, name: str, chosen: IntArray) -> Judgement:
    own = cases.logs[np.arange(len(cases.logs)), chosen]
    over_best = own - cases.logs.min(axis=1)
    over_topo = own - cases.logs[:, cases.orders.index(TOPO)]
    return Judgement(
        name=name,
        picks_best=float((over_best <= np.log1p(LEVEL)).mean()),
        over_best=float(np.exp(over_best.mean())),
        over_topo=float(np.exp(over_topo.mean())),
    )


def _left_out(cases: Cases, choose: Choice) -> IntArray:
    """The order that a choice fitted to all other families makes for each graph."""
    family, chosen = np.array(cases.family), np.zeros(len(cases.logs), dtype=np.int64)
    for name in dict.fromkeys(cases.family):
        own = family == name
        chosen[own] = choose(cases.shapes[~own], cases.logs[~own], cases.shapes[own])
    return chosen


def _tree_choice(shapes: FloatArray, logs: FloatArray, others: FloatArray) -> IntArray:
    found: IntArray = _fit(shapes, logs).predict(others).argmin(axis=1)
    return found


def _mean_choice(shapes: FloatArray, logs: FloatArray, others: FloatArray) -> IntArray:
    return np.full(len(others), int(logs.mean(axis=0).argmin()))


def _fit(shapes: FloatArray, logs: FloatArray) -> Any:
    from sklearn.tree import DecisionTreeRegressor

    return DecisionTreeRegressor(max_depth=DEPTH, min_samples_leaf=8, random_state=0).fit(shapes, logs)


def rows_of(judged: Sequence[Judgement]) -> list[list[str]]:
    """Cells of a table."""
    head = ["choice", "picks the best", "over the best order", "over topo"]
    body = [
        [each.name, f"{each.picks_best:.0%}", f"{each.over_best:.3f}", f"{each.over_topo:.3f}"]
        for each in judged
    ]
    return [head, *body]
