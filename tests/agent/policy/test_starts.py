"""The placements that `improve` starts from."""

import gc
import weakref

import pytest

from agent.policy.starts import start_names, start_of
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from tests.agent.placement_cases import training_graph


@pytest.mark.parametrize("name", start_names())
def test_a_start_is_found_once_and_lives_no_longer_than_its_problem(name: str) -> None:
    problem = Problem(training_graph(2, 2), get_cluster("2xk80"))
    if name != "single":
        assert start_of(name)(problem) is start_of(name)(problem)
    start_of(name)(problem)
    watched = weakref.ref(problem)
    del problem
    gc.collect()
    assert watched() is None
