"""Costs that measured steps correct: known answers of the factors, the fit and the search."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agent.adaptation.adapt import UNLIKELY, Posterior, adapt, prior
from agent.adaptation.corrections import Corrections, models_of
from envs.cluster.presets import get_cluster
from envs.costs.op_classes import op_class
from envs.problem import Problem
from envs.simulator.simulate import step_time_s
from graphs.dataset import load_family
from graphs.system.array_types import FloatArray, IntArray
from tests.agent.placement_cases import found_by

COUNT = 5


@pytest.fixture(scope="module")
def problem() -> Problem:
    return Problem(load_family("gpt")[0], get_cluster("4xv100:2"))


def slow_second(problem: Problem) -> Problem:
    """The same, but the second device takes three times as long."""
    return Problem(problem.graph, problem.cluster, problem.op_seconds * [1.0, 3.0])


def draws(problem: Problem, count: int) -> IntArray:
    """Placements of segments: the first share of the units is on one device, the others on the other."""
    n_units = len(problem.graph.units)
    cuts = np.random.default_rng(0).integers(n_units, size=count)
    return (np.arange(n_units) < cuts[:, None]).astype(np.int64)[:, problem.graph.unit_of]


def steps(problem: Problem, devices_of: IntArray) -> FloatArray:
    return np.array([step_time_s(problem, device_of) for device_of in devices_of])


def learned(models: list[Corrections], placements: IntArray, log_s: FloatArray) -> Posterior:
    posterior = prior(models)
    for device_of, seconds in zip(placements, np.exp(log_s), strict=True):
        posterior = posterior.updated(device_of, seconds)
    return posterior


def twice(corrections: Corrections, kind: str, number: int = 0) -> Problem:
    """The problem with one factor of 2."""
    logs = np.zeros(len(corrections.spreads))
    corrections.of_kind(logs)[kind][number] = np.log(2)
    return corrections.corrected(logs)


def test_each_factor_corrects_what_it_names(problem: Problem) -> None:
    corrections, cluster = Corrections(problem), problem.cluster
    launch_s = np.minimum(problem.op_seconds, cluster.devices[0].launch_s)
    work_s = problem.op_seconds - launch_s
    classes = [op_class(kind) for kind in problem.graph.op_types]
    takes_time = problem.op_seconds.any(axis=1)
    names = sorted({name for name, takes in zip(classes, takes_time, strict=True) if takes})
    is_gemm = np.array([name == "gemm" for name in classes])[:, None]
    more: dict[tuple[str, int], FloatArray] = {
        ("class", names.index("gemm")): work_s * is_gemm,
        ("device", 1): work_s * [0.0, 1.0],
        ("launch", 0): launch_s,
        ("all", 0): problem.op_seconds,
        ("link", 0): 0.0 * work_s,
        ("pair", 0): 0.0 * work_s,
        ("latency", 0): 0.0 * work_s,
    }
    for (kind, number), added in more.items():
        found = twice(corrections, kind, number)
        np.testing.assert_allclose(found.op_seconds, problem.op_seconds + added, rtol=1e-12)
        slower = 2 if kind in ("all", "link", "pair") else 1
        np.testing.assert_allclose(cluster.bytes_per_s, slower * found.cluster.bytes_per_s)
        later = 2 if kind in ("all", "latency") else 1
        np.testing.assert_allclose(found.cluster.latency_s, later * cluster.latency_s)


def test_copies_slow_ops_only_where_a_program_is_issued(problem: Problem) -> None:
    fifo = Problem(problem.graph, get_cluster("2xk80"))
    fifo = Problem(fifo.graph, replace(fifo.cluster, schedule="fifo"))
    for each, slowdown in ((problem, 2.0), (fifo, 1.0)):
        found = twice(Corrections(each), "overlap").cluster.devices
        assert [device.overlap_slowdown for device in found] == [slowdown] * 2


def test_links_of_about_equal_bandwidth_share_a_factor() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("2x4xa100"))
    by_link = [twice(Corrections(problem), "link", number).cluster.bytes_per_s for number in (0, 1)]
    is_slower = [problem.cluster.bytes_per_s / each > 1.5 for each in by_link]
    local = np.arange(8)[:, None] // 4 == np.arange(8) // 4
    between = ~np.eye(8, dtype=bool)
    np.testing.assert_array_equal(is_slower[0][between], ~local[between])
    np.testing.assert_array_equal(is_slower[1][between], local[between])


def test_a_fit_predicts_placements_that_were_not_measured(problem: Problem) -> None:
    truth, corrections, placements = slow_second(problem), Corrections(problem), draws(problem, 16)
    log_s = np.log(steps(truth, placements))
    known = learned([corrections], placements[:6], log_s[:6])
    before = corrections.log_steps(np.zeros(len(corrections.spreads)), placements[6:]) - log_s[6:]
    after = known.predict(known.likely, placements[6:])[0] - log_s[6:]
    assert np.abs(before).mean() > 0.2
    assert np.abs(after).mean() < 0.05


def test_an_improbable_model_is_dropped(problem: Problem) -> None:
    placements, known = draws(problem, 1), prior(models_of(problem)[:2])
    probable, other = known.fits
    fits = [probable, replace(other, log_evidence=-UNLIKELY - 1)]
    (left,) = replace(known, fits=fits).updated(placements[0], steps(problem, placements)[0]).fits
    assert left.corrections is probable.corrections


def test_the_rule_by_which_links_are_shared_is_found() -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    truth = Problem(problem.graph, replace(problem.cluster, sharing="egress"))
    models = models_of(problem)
    placements = np.random.default_rng(0).integers(4, size=(8, len(problem.graph.units)))[
        :, problem.graph.unit_of
    ]
    log_s = np.log(steps(truth, placements))
    likely, _ = learned(models, placements, log_s).likely
    assert likely.problem.cluster.sharing == "egress"


def adapted(problem: Problem, truth: Problem, count: int = COUNT) -> tuple[IntArray, FloatArray, IntArray]:
    start = found_by("heft", problem, 10).placement.device_of
    devices_of, seconds = adapt(
        models_of(problem), [start], lambda each: step_time_s(truth, each), count, np.random.default_rng(0)
    )
    return devices_of, seconds, start


def test_adapting_measures_the_start_first_and_nothing_twice(problem: Problem) -> None:
    found, seconds, start = adapted(problem, slow_second(problem))
    np.testing.assert_array_equal(found[0], start)
    assert len({each.tobytes() for each in found}) == len(seconds) == COUNT
    again, _, _ = adapted(problem, slow_second(problem), 2)
    np.testing.assert_array_equal(found[:2], again)


def test_adapting_finds_what_search_with_true_costs_finds() -> None:
    problem = Problem(load_family("gpt")[1], get_cluster("4xv100:2"))
    truth = slow_second(problem)
    _, seconds, _ = adapted(problem, truth)
    best = found_by("refine", truth, 2000).step_time.total_s
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
    others, _ = adapt(models_of(problem), [start], lambda each: np.nan, 3, np.random.default_rng(0))
    assert len({each.tobytes() for each in others}) == 3
