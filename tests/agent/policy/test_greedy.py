"""Greedy placements that validate a training: every order is used, and many cost no more than one."""

from collections import Counter

import pytest

from agent.policy import greedy as evaluating
from agent.policy.greedy import ratios_over_orders
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.shape import current_shape
from envs.placement.reward import Measured
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from tests.agent.placement_cases import make_cluster, training_graph

ORDERS = ("topo", "bfs", "b-level")


@pytest.mark.parametrize("n_problems", [0, 1, 2, 3, 7])
def test_all_orders_are_placed_and_no_more_than_needed(n_problems, monkeypatch):
    placed = Counter()

    def greedy_ratios(policy, problems, order):
        placed.update((problem, order) for problem in problems)
        return [1.0 + ORDERS.index(order)] * len(problems)

    monkeypatch.setattr(evaluating, "greedy_ratios", greedy_ratios)
    ratios = ratios_over_orders(None, list(range(n_problems)), ORDERS)
    n_each = {0: 0, 1: 3, 2: 2}.get(n_problems, 1)
    assert Counter(problem for problem, _ in placed) == dict.fromkeys(range(n_problems), n_each)
    assert not n_problems or {order for _, order in placed} == set(ORDERS)
    for problem, ratio in enumerate(ratios):
        own = [1.0 + ORDERS.index(order) for number, order in placed if number == problem]
        assert ratio == pytest.approx(sum(own) / n_each)


def test_one_order_is_placed_by_all():
    policy = Policy(PlacementNetwork(current_shape("none", 8, 1)))
    problems = [Problem(training_graph(2, branches), make_cluster(2)) for branches in (1, 2)]
    assert ratios_over_orders(policy, problems, ("bfs",)) == evaluating.greedy_ratios(policy, problems, "bfs")


def test_a_factor_that_measured_steps_have_cancels_out_of_ratios_to_one_device():
    policy = Policy(PlacementNetwork(current_shape("none", 8, 1)))
    problems = [Problem(training_graph(2, 2), make_cluster(2))]
    measured = Measured(lambda problem, device_of: 3 * simulate_problem(problem, device_of).total_s)
    ratios = evaluating.greedy_ratios(policy, problems, "topo", measured)
    assert ratios == pytest.approx(evaluating.greedy_ratios(policy, problems, "topo"))
