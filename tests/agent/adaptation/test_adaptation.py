"""Costs that measured steps correct: known answers of the factors, the fit and the search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.adaptation.adapt import adapt
from agent.adaptation.corrections import CorrectedProblem, Corrections, models_of
from agent.adaptation.posterior import Posterior, fit
from agent.placers.base import PLACERS, Budget
from envs.cluster.presets import get_cluster
from envs.costs.op_classes import op_class
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from graphs.system.array_types import FloatArray, IntArray

COUNT = 5


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load_family("gpt")[0], get_cluster("4xv100:2"))


def slow_second(problem: Problem) -> Problem:
    """The same, but the second device takes three times as long."""
    return CorrectedProblem(problem.graph, problem.cluster, problem.op_seconds * [1.0, 3.0])


def draws(problem: Problem, count: int) -> IntArray:
    """Placements of segments: the first share of the units is on one device, the others on the other."""
    n_units = len(problem.graph.units)
    cuts = np.random.default_rng(0).integers(n_units, size=count)
    return (np.arange(n_units) < cuts[:, None]).astype(np.int64)[:, problem.graph.unit_of]


def steps(problem: Problem, devices_of: IntArray) -> FloatArray:
    return np.array([step_time_s(problem, device_of) for device_of in devices_of])


def test_factors_of_one_change_nothing(problem: Problem) -> None:
    corrections, placements = Corrections(problem), draws(problem, 4)
    logs = np.zeros(len(corrections.names))
    np.testing.assert_allclose(np.exp(corrections.log_steps(logs, placements)), steps(problem, placements))


def test_each_factor_corrects_what_it_names(problem: Problem) -> None:
    corrections = Corrections(problem)
    launch_s = problem.cluster.devices[0].launch_s
    work_s = np.maximum(problem.op_seconds - launch_s, 0.0)
    is_gemm = np.array([op_class(kind) == "gemm" for kind in problem.graph.op_types])[:, None]
    more = {
        ("class", "gemm"): work_s * is_gemm,
        ("device", problem.cluster.devices[1].name): work_s * [0.0, 1.0],
        ("launch", "launch"): np.minimum(problem.op_seconds, launch_s),
        ("all", "all"): problem.op_seconds,
        ("link", "0"): 0.0,
    }
    for name, added in more.items():
        twice = np.where([each == name for each in corrections.names], np.log(2), 0.0)
        found = corrections.corrected(twice)
        np.testing.assert_allclose(found.op_seconds, problem.op_seconds + added, rtol=1e-12)
        slower = 2 if name[0] in ("link", "all") else 1
        np.testing.assert_allclose(problem.cluster.bytes_per_s, slower * found.cluster.bytes_per_s)


def test_a_fit_predicts_placements_that_were_not_measured(problem: Problem) -> None:
    truth, corrections, placements = slow_second(problem), Corrections(problem), draws(problem, 16)
    log_s = np.log(steps(truth, placements))
    start = np.zeros(len(corrections.names))
    found = fit(corrections, placements[:6], log_s[:6], start)
    known = Posterior(placements[:6], log_s[:6], [found])
    before = corrections.log_steps(start, placements[6:]) - log_s[6:]
    after = known.predict(known.likely, placements[6:])[0] - log_s[6:]
    assert np.abs(before).mean() > 0.2
    assert np.abs(after).mean() < 0.05


def test_a_prediction_of_what_was_measured_is_sure(problem: Problem) -> None:
    corrections, placements = Corrections(problem), draws(problem, 3)
    log_s = np.log(steps(problem, placements))
    posterior = Posterior(
        placements, log_s, [fit(corrections, placements, log_s, np.zeros(len(corrections.names)))]
    )
    costs = posterior.draw(np.random.default_rng(0))
    _, at_measured = posterior.predict(costs, placements)
    _, elsewhere = posterior.predict(costs, 1 - placements)
    assert at_measured.max() < elsewhere.min()


def test_the_rule_by_which_links_are_shared_is_found() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    truth = Problem(problem.graph, replace(problem.cluster, sharing="egress"))
    models = models_of(problem)
    placements = np.random.default_rng(0).integers(4, size=(8, len(problem.graph.units)))[
        :, problem.graph.unit_of
    ]
    log_s = np.log(steps(truth, placements))
    fits = [fit(model, placements, log_s, np.zeros(len(model.names))) for model in models]
    likely, _ = Posterior(placements, log_s, fits).likely
    assert likely.problem.cluster.sharing == "egress"


def adapted(problem: Problem, truth: Problem, count: int = COUNT) -> tuple[IntArray, FloatArray, IntArray]:
    start = PLACERS["heft"].place(problem, Budget(10), np.random.default_rng(0)).placement.device_of
    devices_of, seconds = adapt(
        models_of(problem), [start], lambda each: step_time_s(truth, each), count, np.random.default_rng(0)
    )
    return devices_of, seconds, start


def test_adapting_measures_the_start_first_and_nothing_twice(problem: Problem) -> None:
    found, seconds, start = adapted(problem, slow_second(problem))
    np.testing.assert_array_equal(found[0], start)
    assert len({each.tobytes() for each in found}) == len(seconds) == COUNT
    again, _, _ = adapted(problem, slow_second(problem))
    np.testing.assert_array_equal(found, again)


def test_adapting_finds_what_search_with_true_costs_finds(problem: Problem) -> None:
    truth = slow_second(problem)
    _, seconds, _ = adapted(problem, truth)
    best = PLACERS["refine"].place(truth, Budget(2000), np.random.default_rng(0)).step_time.total_s
    assert seconds[0] > 1.5 * best
    assert seconds.min() < 1.1 * best


def test_placements_that_cannot_run_are_passed_over(problem: Problem) -> None:
    start = np.zeros(problem.graph.n_ops, dtype=np.int64)
    calls: list[IntArray] = []

    def measure(device_of: IntArray) -> float:
        calls.append(device_of)
        return np.nan if len(calls) == 1 else step_time_s(problem, device_of)

    _, found = adapt(models_of(problem), [start, 1 - start], measure, 3, np.random.default_rng(0))
    assert np.isnan(found).tolist() == [True, False, False]
    _, alone = adapt(models_of(problem), [start], lambda each: np.nan, 3, np.random.default_rng(0))
    assert len(alone) == 1
