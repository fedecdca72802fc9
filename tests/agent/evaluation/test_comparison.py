"""Comparisons: with `refine` in equal time, by intervals, and of predictions with measurements."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from agent.evaluation.comparison.ratios import Interval, crossed_interval, nested_interval
from agent.evaluation.comparison.summary import ratios_to_baseline, summarise
from agent.evaluation.measured.fidelity import FidelityRow, fidelity_of, varied_placements
from agent.evaluation.results import Trial
from agent.placers.improvements import Improvement
from envs.cluster.presets import get_cluster
from envs.problem import Problem
from envs.simulator.simulate import simulate_problem
from graphs.dataset import load_family
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


def interval_of(groups: list[list[list[float]]]) -> Interval:
    """The interval of logarithms by group, graph and seed."""
    return nested_interval(
        (str(group), graph, log)
        for group, graphs in enumerate(groups)
        for graph, seeds in enumerate(graphs)
        for log in seeds
    )


@pytest.mark.parametrize(
    ("groups", "expected"),
    [
        pytest.param([[[math.log(0.5)] * 3] * 4], (0.5, 0.5, 0.5), id="equal ratios"),
        pytest.param([[[0.0], [1.0]]], (math.exp(0.5), 1.0, math.e), id="a quarter holds one graph twice"),
        pytest.param([[[1.0] * 50, [0.0]]], (math.exp(0.5), 1.0, math.e), id="seeds of a graph are one"),
        pytest.param([[[0.0]] * 100, [[1.0]]], (math.exp(1 / 101), 1.0, math.e), id="groups are wholes"),
    ],
)
def test_intervals_of_hand_made_ratios(
    groups: list[list[list[float]]], expected: tuple[float, float, float]
) -> None:
    """The mean, and the interval by resampling: of groups if there are several, else of their graphs."""
    assert interval_of(groups) == pytest.approx(expected)


def test_an_interval_across_seeds_and_graphs_reads_as_a_cell() -> None:
    assert crossed_interval(np.array([[0.0, 1.0]])) == pytest.approx((math.exp(0.5), 1.0, math.e))
    assert str(crossed_interval(np.zeros((2, 2)))) == "1.000 (1.000 to 1.000)"


def test_intervals_cover_the_mean_of_most_samples() -> None:
    rng = np.random.default_rng(1)
    nested, crossed = 0, 0
    for _ in range(40):
        logs = rng.normal(0.0, 0.2, (30, 1)) + rng.normal(0.0, 0.2, (30, 2))
        found = interval_of([logs.tolist()])
        assert found.low < found.mean < found.high
        assert found.mean == pytest.approx(math.exp(logs.mean()))
        nested += found.low <= 1.0 <= found.high
        # Seeds and graphs each shift all that they take part in.
        logs = rng.normal(0.0, 0.2, (12, 1)) + rng.normal(0.0, 0.2, 30)
        found = crossed_interval(logs)
        crossed += found.low <= 1.0 <= found.high
    assert nested >= 33
    assert crossed >= 33


ROW = FidelityRow("g", "2xcpu", "op", "drawn", 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 20, 0.0, "")


def rows(predicted: list[float], measured: list[float | None]) -> list[FidelityRow]:
    return [
        replace(ROW, predicted_s=p, measured_s=m, first_s=m, last_s=m and -m, failure="" if m else "died")
        for p, m in zip(predicted, measured, strict=True)
    ]


def test_agreement_is_of_those_that_ran() -> None:
    found = fidelity_of(rows([1.0, 2.0, 3.0, 9.0], [2.0, 1.0, 4.0, None]))
    assert found is not None
    assert found.n_placements == 3
    assert found.median_error == pytest.approx(0.5)  # of 0.5, 1 and 0.25
    assert found.p90_error == pytest.approx(0.9)
    assert found.scaled_error == pytest.approx(1 / 3)  # of 0.5, 2 and 0.75 over 0.75
    assert found.kendall == pytest.approx(1 / 3)  # two of three pairs
    assert found.spearman == pytest.approx(0.5)
    assert found.retest == pytest.approx(-1.0)
    assert found.regret == pytest.approx(1.0)  # 2 s where 1 s can be had
    assert fidelity_of(rows([1.0, 2.0], [1.0, None])) is None


def test_placements_are_distinct_spread_and_always_the_same() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("2xk80"))
    found, again = (list(varied_placements(problem, 40)) for _ in range(2))
    assert [source for source, _ in found[:2]] == ["device 0", "device 1"]
    assert len({device_of.tobytes() for _, device_of in found}) == 40
    assert all(a == b and np.array_equal(x, y) for (a, x), (b, y) in zip(found, again, strict=True))
    drawn = sorted(
        simulate_problem(problem, device_of).total_s for source, device_of in found if "drawn" in source
    )
    assert len(drawn) > 15
    assert np.diff(np.log(drawn)).max() < 0.25 * np.log(drawn[-1] / drawn[0])
