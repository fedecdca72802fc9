"""Dynamic programmes against all plans, on small random graphs; the loads of plans over unequal links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipelines.dynamic.ideals import all_ideals, families, windows
from agent.pipelines.dynamic.max_load import StageCosts
from agent.pipelines.dynamic.placers import Rules, best_split, stage_costs
from agent.pipelines.dynamic.programme import Fleet
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.agent.pipelines.plain_max_load import PlainPlan, plain_fits, plain_loads, plain_plans
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph


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


RULES = {
    "pipedream": Rules(overlaps=True, chain_only=True, degrees=(1, 2, 3)),
    "chain": Rules(chain_only=True),
    "ideals": Rules(),
    "piper": Rules(degrees=(1, 2), recomputes=True),
}


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=12, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 3), st.integers(2, 5), st.sampled_from(["1f1b", "gpipe"]))
def test_split_has_the_least_load_of_all_plans(
    name: str, seed: int, n_devices: int, n_layers: int, schedule: str
) -> None:
    pipelined, rules = with_equal_links(seed, n_devices, n_layers, schedule), RULES[name]
    every = plain_plans(
        pipelined, chain_only=rules.chain_only, degrees=rules.degrees, recomputes=rules.recomputes
    )
    loads_s = [
        max(plain_loads(pipelined, plan, overlaps=rules.overlaps))
        for plan in every
        if plain_fits(pipelined, plan)
    ]
    split = best_split(stage_costs(pipelined, overlaps=rules.overlaps), rules, tuple(range(1, n_devices + 1)))
    if split is None:
        assert not loads_s
        return
    assert split.max_load_s == pytest.approx(min(loads_s), rel=1e-9)
    plan = PlainPlan(tuple(split.stage_of.tolist()), tuple(split.devices), split.recomputed)
    assert plain_fits(pipelined, plan)
    assert max(plain_loads(pipelined, plan, overlaps=rules.overlaps)) == pytest.approx(split.max_load_s)


@pytest.mark.parametrize("seed", range(4))
def test_loads_of_a_plan_count_its_own_links(seed: int) -> None:
    """Every tensor over the mean link of two stages, at both ends; its maker waits for the slowest copy."""
    rng = np.random.default_rng(seed)
    pipelined = with_equal_links(seed, 4, 6, "1f1b")
    cluster = pipelined.problem.cluster
    cluster = replace(cluster, bytes_per_s=rng.uniform(1, 9, (4, 4)), latency_s=rng.uniform(0, 1, (4, 4)))
    problem, graph = Problem(pipelined.problem.graph, cluster), pipelined.problem.graph
    pipelined = PipelinedProblem(problem, pipelined.pipeline)
    n_pieces, groups = pipelined.chain.n_pieces, [(2,), (0, 3), (1,)]
    stage_of = np.sort(np.arange(n_pieces) % 3)
    home = stage_of[pipelined.chain.piece_of]
    moved_s = np.zeros(3)
    for tensor, maker in enumerate(graph.tensor_producer.tolist()):
        readers = [reader for reader in graph.consumers.row(tensor) if graph.phases[reader] != "optimizer"]
        to = {int(home[reader]) for reader in readers} - {int(home[maker])}
        if graph.is_source[maker] or graph.phases[maker] == "optimizer" or not to:
            continue
        times_s = []
        for stage in to:
            pairs = [(a, b) for a in groups[home[maker]] for b in groups[stage]]
            size = graph.tensor_bytes[tensor]
            each_s = [
                cluster.latency_s[pair] + (size + cluster.n_half_matrix[pair]) / cluster.bytes_per_s[pair]
                for pair in pairs
            ]
            times_s.append(np.mean(each_s))
            moved_s[stage] += times_s[-1]
        moved_s[home[maker]] += max(times_s)
    free = replace(cluster, bytes_per_s=np.full((4, 4), 1e11), latency_s=np.zeros((4, 4)), n_half_bytes=0.0)
    plan = PlainPlan(tuple(stage_of.tolist()), tuple(groups), (False, True, False))
    costs = StageCosts(pipelined, np.arange(n_pieces))
    computed_s = plain_loads(PipelinedProblem(Problem(graph, free), pipelined.pipeline), plan)
    made = np.where(pipelined.arrays.is_gradient == 1, graph.tensor_bytes, 0.0)
    gradients = np.bincount(home[graph.tensor_producer], made, 3)
    added_s = 4 / 2 * gradients * costs.mean_link_s[0, 0] / 4 * [0, 1, 0]
    expected_s = np.array(computed_s) + moved_s / [1, 2, 1] + added_s
    np.testing.assert_allclose(costs.plan_loads_s(stage_of, groups, plan.recomputes), expected_s, rtol=1e-6)


@pytest.mark.parametrize(("width", "length"), [(1, 9), (2, 3), (3, 2)])
def test_ideals_of_parallel_chains_are_counted(width: int, length: int) -> None:
    before = [1 << node - width if node >= width else 0 for node in range(width * length)]
    count = (length + 1) ** width
    found = all_ideals(before, count)
    assert found is not None
    assert len(np.unique(found, axis=0)) == len(found) == count
    assert (np.diff(found.sum(axis=1)) >= 0).all()
    assert all_ideals(before, count - 1) is None


def test_too_many_ideals_are_merged_and_stay_ideals() -> None:
    costs = stage_costs(with_equal_links(4, 2, 22, "1f1b"))
    *_, chain, some = families(costs, 100, chain_only=False)
    *_, every = families(costs, 10**6, chain_only=False)
    known = {each.tobytes() for each in every}
    assert len(chain) < len(some) < len(every)
    assert all(each.tobytes() in known for each in some)


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
    assert len(Fleet(costs, tuple(range(11)), (11,)).uses) == 12
    split = best_split(costs, Rules(), tuple(range(1, 12)))
    assert split is not None
    (ranks,) = {tuple(device for group in split.devices for device in group)}
    assert ranks == tuple(range(11 - len(ranks), 11))
