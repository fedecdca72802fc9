"""Placers of pipelines: valid plans, optimal ones where all can be tried, and bad input in one line."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations, product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipeline import annealing
from agent.pipeline.equal import cut_equally
from agent.pipeline.pipedream import Fleet, best_split, stage_costs, windows
from agent.pipeline.search import PipelineSearch
from agent.placers.base import PIPELINE_PLACERS, Budget, PlacementResult, names_of
from envs.cluster.presets import get_cluster
from envs.objective import PIPELINE
from envs.pipeline.chain import Cuts
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.pipeline.stages import stages_of
from envs.problem import Problem
from graphs.dataset import load_family
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph
from tests.specification.pipelined_step import plain_step

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b:2", "zero-bubble")


def small(
    seed: int, schedule: str = "1f1b", n_devices: int = 3, n_layers: int = 7, *, branches: bool = False
) -> PipelineObjective:
    rng = np.random.default_rng(seed)
    cluster = random_pipeline_cluster(rng, n_devices)
    graph = random_training_graph(rng, n_layers, branches=branches)
    return PipelineObjective(Problem(graph, cluster), Pipeline(schedule, 6))


def place(name: str, objective: PipelineObjective, evaluations: int) -> PlacementResult:
    return PIPELINE_PLACERS[name].place(objective, Budget(evaluations), np.random.default_rng(0))


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize("name", names_of(PIPELINE))
def test_plans_are_valid_and_their_steps_are_those_of_the_plain_simulation(name: str, schedule: str) -> None:
    pipelined = small(3, schedule)
    found = place(name, pipelined, 50)
    stages = stages_of(pipelined.problem, found.placement)
    assert stages.stage_of.tolist() == found.placement.stage_of.tolist()
    plain = plain_step(pipelined.problem, pipelined.pipeline, stages)
    assert plain is not None
    assert found.step_time.total_s == pytest.approx(plain.total_s, rel=1e-9)
    assert found.evaluations <= 50


def every_plan(search: PipelineSearch, recomputes: bool) -> Iterator[Cuts]:
    """Yields all plans on three devices."""
    for n in range(1, 4):
        for ranks in permutations(range(3), n):
            for cuts in combinations(range(1, search.pipelined.chain.n_pieces), n - 1):
                for again in product((False, True), repeat=n if recomputes else 0):
                    yield Cuts((0, *cuts), ranks, again)


@pytest.mark.parametrize(
    ("seed", "schedule", "memory"), [(0, "1f1b", 1.0), (1, "gpipe", 0.6), (3, "1f1b", 0.6), (5, "1f1b", 0.6)]
)
def test_search_finds_the_best_of_all_plans(seed: int, schedule: str, memory: float) -> None:
    pipelined = small(seed, schedule, n_layers=6)
    search = PipelineSearch(pipelined, Budget(10**6))
    if memory < 1:
        alone = place("single", pipelined, 200)
        limits = np.full(3, memory * alone.step_time.peak_bytes.max())
        pipelined = PipelineObjective(pipelined.problem.with_memory(limits), pipelined.pipeline)
        search = PipelineSearch(pipelined, Budget(10**6))
    best = min(search.score_cuts(cuts) for cuts in every_plan(search, memory < 1))
    found = place("refine", pipelined, 4_000)
    over_bytes = np.maximum(found.step_time.peak_bytes - pipelined.problem.cluster.memory_bytes, 0).sum()
    assert (over_bytes, found.step_time.total_s) == pytest.approx(best)


def test_a_split_takes_less_memory_until_the_simulated_plan_fits() -> None:
    ample, pipeline = Problem(load_family("gpt")[0], get_cluster("4xv100")), Pipeline("1f1b", 8)
    need = place("pipedream", PipelineObjective(ample, pipeline), 10).step_time.peak_bytes
    scarce = ample.with_memory(np.full(4, 0.8 * need.max()))
    assert place("pipedream", PipelineObjective(scarce, pipeline), 10).step_time.fits


def test_stages_of_equal_time_have_the_least_load_for_their_order() -> None:
    search = PipelineSearch(small(5, n_layers=9), Budget(1))
    seconds = search.pipelined.chain.seconds[:2].sum(axis=0)
    ranks = (2, 0, 1)

    def load(first: tuple[int, ...]) -> float:
        ends = (*first[1:], len(seconds))
        return max(seconds[a:b, d].sum() for a, b, d in zip(first, ends, ranks, strict=True))

    least = min(load((0, *cuts)) for cuts in combinations(range(1, len(seconds)), 2))
    assert load(search.pipelined.balanced(ranks).first) == pytest.approx(least)


def test_equal_shares_leave_no_stage_empty() -> None:
    assert cut_equally(np.array([0.0, 0.0, 9.0, 0.0, 0.0]), 4) == (0, 1, 2, 3)
    assert cut_equally(np.ones(8), 4) == (0, 2, 4, 6)


@pytest.mark.parametrize("seed", [1, 5])
def test_refine_starts_from_a_plan_that_fits_if_none_of_equal_time_does(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wide = small(seed, n_layers=9)
    memory_bytes = wide.problem.graph.resident_bytes.sum() * np.array([2.0, 1.0, 0.2])
    problem = wide.problem.with_memory(memory_bytes)
    pipelined = PipelineObjective(problem, replace(wide.pipeline, may_recompute=False))
    assert place("refine", pipelined, 8).step_time.fits
    monkeypatch.setattr(annealing, "PROGRAMME_S", np.inf)
    assert not place("refine", pipelined, 8).step_time.fits


@pytest.mark.parametrize("name", ["annealing", "refine", "single"])
def test_searches_end_before_their_seconds_are_spent(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    clock, simulate = [0.0], PipelinedProblem._run

    def simulate_for_a_second(*settings: Any) -> float:
        clock[0] += 1.0
        return simulate(*settings)

    monkeypatch.setattr(PipelinedProblem, "_run", simulate_for_a_second)
    budget = Budget(None, 12.0, lambda: clock[0])
    assert PIPELINE_PLACERS[name].place(small(0), budget, np.random.default_rng(0)).step_time.fits
    assert (9.0 if name != "single" else 3.0) <= clock[0] <= 12.0


def test_clusters_that_run_no_pipeline_are_refused() -> None:
    graph = load_family("gpt")[0]
    shared = PipelineObjective(Problem(graph, get_cluster("placeto-k80")), Pipeline("1f1b", 8))
    with pytest.raises(PipelineError, match="has schedule 'fifo'; a pipeline needs 'program'"):
        place("single", shared, 1)


@dataclass(frozen=True)
class PlainPlan:
    """First piece and device of each stage: a plan of PipeDream, whose max-load is computed op by op."""

    first: tuple[int, ...]
    devices: tuple[int, ...]

    def stages(self, pipelined: PipelinedProblem) -> list[int]:
        """Stage of each op."""
        return [bisect_right(self.first, piece) - 1 for piece in pipelined.chain.piece_of]


def plain_loads(pipelined: PipelinedProblem, plan: PlainPlan) -> list[float]:
    """Seconds per microbatch of each stage; links are taken to be equal."""
    problem, graph = pipelined.problem, pipelined.problem.graph
    cluster, stage = problem.cluster, plan.stages(pipelined)
    byte_s = fixed_s = 0.0
    if problem.n_devices > 1:
        byte_s = 1 / cluster.bytes_per_s[0, 1]
        fixed_s = cluster.latency_s[0, 1] + cluster.n_half_matrix[0, 1] * byte_s
    loads_s = []
    for s, device in enumerate(plan.devices):
        compute_s = front_s = back_s = 0.0
        for op, phase in enumerate(graph.phases):
            if stage[op] == s and not graph.is_source[op] and phase != "optimizer":
                compute_s += problem.op_seconds[op, device]
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] == "optimizer":
                continue
            to = {stage[reader] for reader in readers if graph.phases[reader] != "optimizer"} - {stage[maker]}
            time_s = fixed_s + graph.tensor_bytes[tensor] * byte_s
            sends, receives = stage[maker] == s and bool(to), s in to
            if graph.phases[maker] == "forward":
                front_s, back_s = front_s + time_s * receives, back_s + time_s * sends
            else:
                front_s, back_s = front_s + time_s * sends, back_s + time_s * receives
        loads_s.append(max(compute_s, front_s, back_s))
    return loads_s


def plain_fits(pipelined: PipelinedProblem, plan: PlainPlan) -> bool:
    """Says whether the estimated memory of no stage is above that of its device."""
    graph, stage, count = pipelined.problem.graph, plan.stages(pipelined), pipelined.pipeline.microbatches
    for s, device in enumerate(plan.devices):
        held = sum(graph.resident_bytes[op] for op in range(graph.n_ops) if stage[op] == s)
        kept = 0.0
        for tensor in range(graph.n_tensors):
            maker, readers = int(graph.tensor_producer[tensor]), graph.consumers.row(tensor).tolist()
            if graph.is_source[maker] or graph.phases[maker] != "forward":
                continue
            kept += graph.tensor_bytes[tensor] * any(
                stage[reader] == s and graph.phases[reader] == "backward" for reader in readers
            )
        alive = count if pipelined.pipeline.name == "gpipe" else min(count, len(plan.devices) - s)
        if held + alive * kept > pipelined.problem.cluster.devices[device].memory_bytes:
            return False
    return True


def plain_plans(pipelined: PipelinedProblem) -> Iterator[PlainPlan]:
    """Yields all plans, with devices of the same kind and memory in one order."""
    n_pieces, cluster = pipelined.chain.n_pieces, pipelined.problem.cluster
    kinds = [(device.kind, device.memory_bytes) for device in cluster.devices]
    for n_stages in range(1, min(cluster.n_devices, n_pieces) + 1):
        by_kind = {
            tuple(kinds[device] for device in devices): devices
            for devices in permutations(range(cluster.n_devices), n_stages)
        }
        for cuts in combinations(range(1, n_pieces), n_stages - 1):
            for devices in by_kind.values():
                yield PlainPlan((0, *cuts), devices)


def with_equal_links(seed: int, n_devices: int, n_layers: int, schedule: str) -> PipelinedProblem:
    """Draws a graph, and devices of two kinds whose memory binds at times."""
    rng = np.random.default_rng(seed)
    graph, shape = random_training_graph(rng, n_layers, branches=True), (n_devices, n_devices)
    cluster = random_pipeline_cluster(rng, n_devices)
    little = float(rng.uniform(4, 40))
    devices = tuple(
        replace(device, memory_bytes=little if rng.random() < 0.5 else 1e6) for device in cluster.devices
    )
    cluster = replace(
        cluster,
        devices=devices,
        bytes_per_s=np.full(shape, float(rng.uniform(2, 10))),
        latency_s=np.full(shape, float(rng.uniform(0, 0.1))),
        n_half_bytes=0.1 * float(rng.integers(0, 2)),
    )
    return PipelinedProblem(Problem(graph, cluster), Pipeline(schedule, 4))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 5), st.sampled_from(["1f1b", "gpipe"]))
def test_split_has_the_least_load_of_all_plans(
    seed: int, n_devices: int, n_layers: int, schedule: str
) -> None:
    pipelined = with_equal_links(seed, n_devices, n_layers, schedule)
    fitting = [plan for plan in plain_plans(pipelined) if plain_fits(pipelined, plan)]
    loads_s = [max(plain_loads(pipelined, plan)) for plan in fitting]
    split = best_split(stage_costs(pipelined), tuple(range(1, n_devices + 1)))
    if split is None:
        assert not loads_s
        return
    assert split.max_load_s == pytest.approx(min(loads_s), rel=1e-9)
    plan = PlainPlan(tuple(split.first), tuple(split.devices))
    assert plain_fits(pipelined, plan)
    assert max(plain_loads(pipelined, plan)) == pytest.approx(split.max_load_s)


def test_windows_keep_the_cheapest_cuts() -> None:
    cut_bytes = np.array([0, 9, 1, 9, 9, 2, 9, 9, 9, 3], dtype=float)
    assert windows(np.ones(10), cut_bytes, 4).tolist() == [0, 0, 1, 1, 1, 2, 2, 2, 2, 3]
    assert windows(np.ones(3), cut_bytes[:3], 4).tolist() == [0, 1, 2]


def test_devices_of_many_kinds_are_used_in_their_order() -> None:
    pipelined = with_equal_links(2, 11, 14, "1f1b")
    cluster = pipelined.problem.cluster
    devices = tuple(replace(each, memory_bytes=1e6 + at) for at, each in enumerate(cluster.devices))
    problem = Problem(pipelined.problem.graph, replace(cluster, devices=devices))
    costs = stage_costs(PipelinedProblem(problem, pipelined.pipeline))
    assert len(Fleet(costs, 11, (11,)).uses) == 12
    split = best_split(costs, tuple(range(1, 12)))
    assert split is not None
    assert split.devices == list(range(11 - len(split.devices), 11))
