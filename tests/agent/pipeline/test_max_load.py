"""The split of PipeDream against all plans, on small random graphs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipeline.pipedream import Fleet, best_split, stage_costs, windows
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.agent.pipeline.plain_max_load import PlainPlan, plain_fits, plain_loads, plain_plans
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
