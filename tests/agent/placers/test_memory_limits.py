"""Tries with less and less memory."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from agent.evaluation.run import evaluate
from agent.evaluation.spec import EvaluationSpec
from agent.placers.base import Budget
from agent.placers.memory_limits import (
    CORRECTIONS,
    MARGIN,
    MAX_TRIES,
    MemoryLimits,
    complete_placement,
    retry_until_feasible,
)
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
from graphs.system.array_types import IntArray
from tests.agent.evaluation_cases import quiet, rows_of
from tests.agent.placement_cases import GB, found_by, make_cluster, random_problem, training_graph

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


CLUSTER = get_cluster("4xv100")
LLAMAS = load_family("llama")
SPREADING = ("memory-fill", "m-topo", "contiguous", "heft", "m-etf", "rollout", "annealing", "local-search")


def test_placers_that_spread_are_feasible_where_no_single_device_is() -> None:
    tightest = Problem(max(LLAMAS, key=lambda graph: graph.resident_bytes.sum()), CLUSTER)
    tightest.check_feasible()
    for name in ("single", *SPREADING):
        found = found_by(name, tightest, 500)
        assert found.feasible == (found.step_time.peak_bytes <= CLUSTER.memory_bytes).all()
        assert found.feasible == (name != "single"), name


def test_a_placer_that_is_out_of_memory_is_reported_so(tmp_path: Path) -> None:
    study = EvaluationSpec(tuple(LLAMAS[:2]), (CLUSTER,), ("single", "memory-fill"), budget=Budget(20))
    evaluate(study, tmp_path, report=quiet)
    rows = rows_of(tmp_path)
    reported = {(row["placer"], row["feasible"], bool(row["ratio_to_single"])) for row in rows}
    assert reported == {("single", "false", False), ("memory-fill", "true", True)}
