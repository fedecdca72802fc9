"""Single moves against full simulations."""

from __future__ import annotations

import numpy as np
from hypothesis import example, given
from hypothesis import strategies as st

from envs.cluster.cluster import Cluster
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from envs.simulator.single_moves import single_move_costs
from graphs import OpGraph
from tests.envs.random_problems import problems, random_cluster, random_graph, random_placement


def tied(seed: int) -> tuple[OpGraph, Cluster, np.ndarray]:
    """A problem with moves that change nothing, of which the rounded work says that they do."""
    rng = np.random.default_rng(seed)
    graph, cluster = random_graph(rng, 10), random_cluster(rng, 3)
    return graph, cluster, random_placement(rng, graph, 3)


@given(problems(), st.sampled_from([np.inf, 1.0, 0.0]))
@example(tied(139), 0.0)
@example(tied(187), 0.0)
def test_single_moves_are_timed_as_from_scratch(
    case: tuple[OpGraph, Cluster, np.ndarray], limit_s: float
) -> None:
    graph, cluster, device_of = case
    problem, before = Problem(graph, cluster), device_of.copy()
    found = single_move_costs(problem, device_of, limit_s)
    assert (device_of == before).all()
    stay_s = step_time_s(problem, device_of)
    for unit in range(len(graph.units)):
        for device in range(cluster.n_devices):
            moved_s = step_time_s(problem, np.where(graph.unit_of == unit, device, device_of))
            seen_late = found[unit, device] < np.inf
            assert found[unit, device] == moved_s if seen_late else moved_s > stay_s + limit_s
