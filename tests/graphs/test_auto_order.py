"""The rule of the order `auto`: what it picks, and what a damaged file says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from graphs import order_rule, orders
from graphs.op_graph import build_graph
from graphs.order_rule import Question, describe, from_json, pick_order, shipped_rule, to_json
from graphs.orders import ORDERS
from graphs.shape import GraphShape, shape_of
from graphs.system.json_files import FileFormatError

RULE = Question("width", 0.2, Question("n_ops", 100, "topo", "b-level"), "bfs")
SHAPE = GraphShape(50, 0.5, 0.1, 1.2, 0.4, 0.3, 1.5)


def test_a_rule_asks_until_an_order_is_left() -> None:
    assert pick_order(RULE, SHAPE) == "topo"
    assert pick_order(RULE, replace(SHAPE, n_ops=101)) == "b-level"
    assert pick_order(RULE, replace(SHAPE, width=0.21)) == "bfs"
    assert pick_order("alpha", SHAPE) == "alpha"


def test_a_rule_is_what_was_written() -> None:
    assert from_json(to_json(RULE), "rule") == RULE
    assert describe(RULE)[0] == "width at most 0.2:"
    assert describe(RULE)[-1] == "  bfs"


@pytest.mark.parametrize(
    ("value", "where"),
    [
        (3, "rule: expected"),
        ({"feature": "colour", "at_most": 1, "if_so": "topo", "otherwise": "bfs"}, "rule: expected"),
        ({"feature": "width", "at_most": 1, "if_so": "topo"}, "rule.otherwise: expected"),
    ],
)
def test_no_rule_is_refused_with_where_it_is_wrong(value: object, where: str) -> None:
    with pytest.raises(FileFormatError, match=where):
        from_json(value, "rule")


def test_auto_follows_the_rule_for_each_graph(monkeypatch: pytest.MonkeyPatch) -> None:
    ops: list[dict[str, object]] = [{"name": name, "flops": 1e9} for name in ("b", "a", "c")]
    chain = build_graph("chain", "", ops, [(0, 1.0, [1]), (1, 1.0, [2])])
    wide = build_graph("wide", "", ops, [])
    rule = Question("width", (shape_of(chain).width + shape_of(wide).width) / 2, "topo", "alpha")
    monkeypatch.setattr(orders, "shipped_rule", lambda: rule)
    rng = np.random.default_rng(0)
    assert ORDERS["auto"](chain, rng).tolist() == [0, 1, 2]
    assert ORDERS["auto"](wide, rng).tolist() == [1, 0, 2]


def test_the_shipped_rule_picks_orders_that_there_are() -> None:
    def picked(rule: order_rule.OrderRule) -> set[str]:
        if isinstance(rule, str):
            return {rule}
        return picked(rule.if_so) | picked(rule.otherwise)

    assert picked(shipped_rule()) <= set(ORDERS) - {"auto"}
