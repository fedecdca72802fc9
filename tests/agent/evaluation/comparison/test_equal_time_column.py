"""The column that compares placers with `refine` in equal processor time."""

from __future__ import annotations

from dataclasses import replace

import pytest

from agent.evaluation.comparison.summary import ratios_to_baseline, summarise
from agent.evaluation.results import Trial
from agent.placers.improvements import Improvement
from tests.agent.evaluation_cases import trial

HISTORY = (Improvement(1, 0.1, 8.0), Improvement(10, 1.0, 4.0), Improvement(100, 4.0, 2.0))


def search(cpu_s: float = 10.0, *, seed: int = 0) -> Trial:
    """`refine` ran for 10 seconds by the wall, and so many by the processor."""
    of = trial("g", "refine", 2.0, seed=seed)
    return replace(of, improvements=HISTORY, wall_s=10.0, cpu_s=cpu_s)


def policy(cpu_s: float, *, placer: str = "policy", step_s: float = 3.0) -> Trial:
    return replace(trial("g", placer, step_s), cpu_s=cpu_s, wall_s=cpu_s)


def ratio(*trials: Trial) -> float | None:
    return ratios_to_baseline(trials).get(trials[-1].key)


@pytest.mark.parametrize(
    ("cpu_s", "found_s"), [(0.01, 8.0), (0.1, 8.0), (0.9, 8.0), (1.0, 4.0), (3.9, 4.0), (10.0, 2.0)]
)
def test_the_baseline_counts_as_far_as_it_was_by_then(cpu_s: float, found_s: float) -> None:
    assert ratio(search(), policy(cpu_s)) == pytest.approx(3.0 / found_s)


def test_wall_seconds_of_improvements_are_scaled_to_processor_seconds() -> None:
    assert ratio(search(cpu_s=5.0), policy(2.0)) == pytest.approx(3.0 / 2.0)
    assert ratio(search(cpu_s=5.0), policy(1.9)) == pytest.approx(3.0 / 4.0)


def test_seeds_of_the_baseline_count_by_their_geometric_mean() -> None:
    slower = replace(search(seed=1), step_time_s=8.0, improvements=HISTORY[:1])
    assert ratio(search(), slower, policy(5.0)) == pytest.approx(3.0 / 4.0)


def test_the_baseline_is_level_with_itself() -> None:
    assert ratio(search(), search(seed=1)) == 1.0


def test_nothing_is_said_where_the_baseline_did_not_run_so_long() -> None:
    assert ratio(policy(1.0)) is None
    assert ratio(search(), policy(12.0)) == pytest.approx(1.5)
    assert ratio(search(), policy(13.0)) is None
    assert ratio(search(), replace(search(cpu_s=2.0, seed=1), wall_s=2.0), policy(5.0)) is None


def test_an_infeasible_baseline_or_placement_has_no_ratio() -> None:
    assert ratio(replace(search(), feasible=False), policy(1.0)) is None
    assert ratio(search(), replace(policy(1.0), feasible=False)) is None


@pytest.mark.parametrize("placer", ["heft", "rollout", "data-parallel", "a-file-of-mine"])
def test_heuristics_and_given_placements_are_not_compared(placer: str) -> None:
    assert ratio(search(), policy(1.0, placer=placer)) is None


def test_the_summary_has_the_mean_where_all_are_known() -> None:
    other = replace(policy(1.0, step_s=16.0), graph="h")
    lines = {line.placer: line for line in summarise([search(), policy(1.0), other])}
    assert lines["policy"].ratio_to_refine is None
    lines = {
        line.placer: line for line in summarise([search(), replace(search(), graph="h"), policy(1.0), other])
    }
    assert lines["policy"].ratio_to_refine == pytest.approx((3.0 / 4.0 * 16.0 / 4.0) ** 0.5)
    assert lines["refine"].ratio_to_refine == 1.0
