"""The rule that picks orders: it learns what there is, and is no better than topo where there is nothing."""

from __future__ import annotations

import numpy as np
import pytest

from agent.experiments.orders.rule import Cases, best_rule, fitted_tree, judge
from graphs.order_rule import Question
from graphs.system.array_types import FloatArray

ORDERS = ("topo", "bfs", "alpha")
N_FEATURES = 7


def cases(logs: FloatArray, shapes: FloatArray) -> Cases:
    family = tuple(f"f{at % 4}" for at in range(len(logs)))
    return Cases(ORDERS, family, shapes, logs)


def test_a_rule_that_exists_is_found() -> None:
    rng = np.random.default_rng(0)
    shapes = rng.random((80, N_FEATURES))
    wide = shapes[:, 2] > 0.5
    logs = np.stack([np.where(wide, 0.0, -0.2), np.where(wide, -0.2, 0.0), np.full(80, 0.1)], axis=1)
    found = {each.name: each for each in judge(cases(logs, shapes))}
    assert found["tree by shape"].picks_best > 0.9
    assert found["tree by shape"].over_best < 1.01
    assert found["always topo"].picks_best == pytest.approx((~wide).mean())
    rule = best_rule(cases(logs, shapes), judge(cases(logs, shapes)))
    assert rule == fitted_tree(cases(logs, shapes))
    assert isinstance(rule, Question)
    assert (rule.feature, rule.if_so, rule.otherwise) == ("width", "topo", "bfs")
    assert rule.at_most == pytest.approx(0.5, abs=0.05)


def test_the_best_order_of_other_families_is_topo_where_topo_is_best() -> None:
    rng = np.random.default_rng(1)
    logs = np.log([[0.5, 0.6, 0.9]] * 40) + 0.001 * rng.normal(size=(40, 3))
    for each in judge(cases(logs, rng.random((40, N_FEATURES)))):
        assert (each.picks_best, each.over_topo) == (1.0, 1.0)


def test_where_no_choice_is_better_the_rule_is_topo() -> None:
    rng = np.random.default_rng(2)
    logs, shapes = rng.normal(size=(40, 3)), rng.random((40, N_FEATURES))
    logs[:, 0] -= 3
    assert best_rule(cases(logs, shapes), judge(cases(logs, shapes))) == "topo"
