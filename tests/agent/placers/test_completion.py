"""Completion of placements that an episode left unfinished."""

import numpy as np
import pytest

from agent.placers.memory_limits import complete_placement
from envs.problem import Problem
from tests.agent.placement_cases import GB, make_cluster, random_problem, training_graph


def test_units_go_one_after_another_where_most_memory_is_free() -> None:
    """Four units of 1 GB and a bit; one is on a device of 2 GB, the others have 3 and 5 GB."""
    problem = Problem(training_graph(2, 2), make_cluster(3))
    tight = problem.with_memory(np.array([2 * GB, 3 * GB, 5 * GB]))
    heavy = tight.footprint_bytes > GB / 2
    assert heavy.sum() == 4
    unit_device = np.full(len(heavy), -1)
    unit_device[np.flatnonzero(heavy)[0]] = 0
    completed = complete_placement(tight, unit_device[tight.graph.unit_of])
    first_ops = tight.graph.units.items[tight.graph.units.ptr[:-1]]
    assert completed[first_ops][heavy].tolist() == [0, 2, 2, 1]


@pytest.mark.parametrize("seed", range(6))
def test_what_is_placed_stays_and_units_stay_together(seed: int) -> None:
    problem = random_problem(seed)
    rng = np.random.default_rng(seed)
    unit_device = rng.integers(-1, problem.n_devices, len(problem.graph.units))
    device_of = unit_device[problem.graph.unit_of]
    completed = complete_placement(problem, device_of)
    assert (completed >= 0).all()
    np.testing.assert_array_equal(completed[device_of >= 0], device_of[device_of >= 0])
    for unit in range(len(problem.graph.units)):
        assert len(np.unique(completed[problem.graph.units.row(unit)])) == 1
