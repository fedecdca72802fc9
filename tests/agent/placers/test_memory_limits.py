"""Tries with less and less memory."""

import numpy as np
import pytest

from agent.placers.memory_limits import CORRECTIONS, MARGIN, MAX_TRIES, MemoryLimits, retry_until_feasible
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.system.array_types import IntArray
from tests.agent.placement_cases import GB, make_cluster, training_graph

PROBLEM = Problem(training_graph(2, 2), make_cluster(2, memory_bytes=3 * GB))


def test_the_first_try_has_all_memory_and_is_the_problem_itself() -> None:
    limits = MemoryLimits(PROBLEM)
    assert limits.n_tries == 1
    assert limits.problem is PROBLEM
    np.testing.assert_array_equal(limits.limit_bytes, PROBLEM.cluster.memory_bytes)


def test_a_device_that_overflows_gets_less_by_as_much_and_a_margin() -> None:
    limits = MemoryLimits(PROBLEM)
    assert limits.tighten(np.array([3.5 * GB, 1 * GB]))
    assert limits.limit_bytes.tolist() == pytest.approx([2.5 * GB - MARGIN * 3 * GB, 3 * GB])
    assert limits.problem.cluster.memory_bytes.tolist() == pytest.approx(limits.limit_bytes.tolist())


def test_tries_end_with_ever_smaller_shares() -> None:
    limits, peak_bytes = MemoryLimits(PROBLEM), np.array([3.1 * GB, 3.1 * GB])
    seen = [limits.limit_bytes[0]]
    while limits.tighten(peak_bytes):
        seen.append(limits.limit_bytes[0])
    assert len(seen) == MAX_TRIES
    shares = np.array(seen[CORRECTIONS + 1 :]) / (3 * GB)
    np.testing.assert_allclose(shares, np.arange(0.9, 0.05, -0.1))


@pytest.mark.parametrize("stop_at", [1, 4, MAX_TRIES, MAX_TRIES + 1])
def test_a_loop_ends_when_a_placer_says_so_or_all_tries_are_made(stop_at: int) -> None:
    one_device = np.zeros(PROBLEM.graph.n_ops, dtype=np.int64)
    assert not simulate_problem(PROBLEM, one_device).fits
    tries: list[int] = []

    def place_within(limits: MemoryLimits) -> IntArray | None:
        tries.append(limits.n_tries)
        return None if limits.n_tries == stop_at else one_device

    assert retry_until_feasible(PROBLEM, place_within) == (stop_at <= MAX_TRIES)
    assert tries == list(range(1, min(stop_at, MAX_TRIES) + 1))
