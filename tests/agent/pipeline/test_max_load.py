"""The split of PipeDream against all plans, on small random graphs: max-load in plain Python, op by op."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import combinations, permutations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agent.pipeline.pipedream import Fleet, best_split, stage_costs, windows
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_training_graph


@dataclass(frozen=True)
class PlainPlan:
    """First piece and device of each stage."""

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
