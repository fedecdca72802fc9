"""Replicas of a pipeline: equal to a plain simulation, to one pipeline, and to data parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from agent.placers.base import PIPELINE_PLACERS, Budget
from envs.cluster.cluster import Cluster
from envs.cluster.presets import get_cluster
from envs.pipeline.chain import Cuts
from envs.pipeline.groups import groups_for, part_of, sharded, shares_of
from envs.pipeline.module_cuts import cut_at_modules
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.replicas import on_groups, pipelined_of
from envs.placements.files import placement_from_json, placement_to_json
from envs.problem import Problem
from graphs.capture.capture import capture
from graphs.dataset import load_family
from graphs.system.errors import InputError
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_stages, random_training_graph
from tests.specification.replicas import plain_replicas

SCHEDULES = ("gpipe", "1f1b", "interleaved-1f1b:2", "zero-bubble")


def random_case(rng, n_replicas, size, *, are_equal, slowdown=1.0):
    """Draws a graph on groups of devices, in any order, that are equal or not."""
    group = random_pipeline_cluster(rng, size * n_replicas)
    order = rng.permutation(size * n_replicas)
    groups = order.reshape(n_replicas, size)
    devices = list(group.devices)
    for own in groups[1:] if are_equal else ():
        for first, device in zip(groups[0], own, strict=True):
            devices[device] = replace(devices[first], name=devices[device].name)
    devices = [replace(device, overlap_slowdown=slowdown) for device in devices]
    cluster = replace(group, devices=tuple(devices))
    graph = random_training_graph(rng, int(rng.integers(size * 2, 16)))
    graph = replace(graph, tensor_bytes=graph.tensor_bytes * 1e6, resident_bytes=graph.resident_bytes * 1e7)
    cluster = replace(cluster, bytes_per_s=cluster.bytes_per_s * 1e6)
    return Problem(graph, cluster), tuple(map(tuple, groups.tolist()))


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    schedule=st.sampled_from(SCHEDULES),
    shape=st.sampled_from([(2, 1), (2, 2), (3, 2), (2, 3), (3, 1)]),
    are_equal=st.booleans(),
    shard=st.booleans(),
    slowdown=st.sampled_from([1.0, 1.5]),
    ties=st.booleans(),
)
def test_replicas_are_those_of_the_plain_simulation(seed, schedule, shape, are_equal, shard, slowdown, ties):
    rng, (n_replicas, size) = np.random.default_rng(seed), shape
    problem, groups = random_case(rng, n_replicas, size, are_equal=are_equal, slowdown=slowdown)
    if ties:
        modules = tuple(f"layer{name[1:]}" for name in problem.graph.op_names)
        problem = replace(problem, graph=replace(problem.graph, modules=modules))
    count = n_replicas * size * int(rng.integers(1, 3))
    pipeline = Pipeline(schedule, count, replicas=n_replicas, shard_optimizer=shard)
    local = random_stages(rng, part_of(problem, groups[0]), size, pipeline.stages_per_device)
    if rng.random() < 0.5 or size == 1:
        local = replace(local, recomputed=(0,))
    replicated, stages = pipelined_of(problem, pipeline).with_copies(on_groups(local, groups))
    position = np.argsort([*groups[0], *np.setdiff1d(np.arange(problem.n_devices), groups[0])])
    local = replace(stages, device_of=position[stages.device_of], devices=position[stages.devices], groups=())
    problem = replicated.problem
    whole = sharded(problem, n_replicas) if shard else problem
    parts = [part_of(whole, group) for group in groups]
    shares = shares_of(problem, groups, count)
    own = [replace(pipeline, microbatches=share, replicas=1) for share in shares]
    try:
        found = pipelined_of(problem, pipeline).simulate(on_groups(local, groups))
    except PipelineError:
        return
    plain = plain_replicas(problem, parts, own, local, groups, shard)
    assert plain is not None
    assert found.total_s == pytest.approx(plain.total_s, rel=1e-9)
    flat = np.array(groups).ravel()
    np.testing.assert_allclose(found.peak_bytes[flat], plain.peak_bytes(local), rtol=1e-9)
    held = replicated.memory(stages, 20).max(axis=1)
    np.testing.assert_allclose(held[flat], plain.peak_bytes(local), rtol=1e-9)
    limits = np.where(np.arange(problem.n_devices) % 2, 0.7, 1.1) * found.peak_bytes + 1.0
    over_bytes = np.maximum(found.peak_bytes - limits, 0.0).sum()
    limited = pipelined_of(problem.with_memory(limits), pipeline)
    assert limited.score(stages) == pytest.approx((over_bytes, found.total_s), rel=1e-9)
    busy = sum(s.finish_s[i] - s.start_s[i] for s in plain.steps for i in s.start_s)
    assert found.busy_s.sum() == pytest.approx(busy, rel=1e-9)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-1f1b:2", "zero-bubble"])
def test_replicas_of_one_device_are_data_parallelism_to_the_bit(schedule: str) -> None:
    problem = Problem(load_family("gpt")[0], get_cluster("4xv100"))
    objective = PipelineObjective(problem, Pipeline(schedule, 12, replicas=4))
    found = objective.pipelined.simulate(objective.stages(next(objective.singles())))
    parallel = objective.data_parallel()
    assert found.total_s == parallel.step_s
    assert found.peak_bytes.max() == pytest.approx(parallel.peak_bytes, rel=1e-4)  # more inputs are there
    assert parallel.n_replicas == len(found.busy_s) == 4
    assert len(set(found.busy_s.tolist())) == 1


def two_nodes(kinds: tuple[str, str] = ("4xv100", "4xv100")) -> Cluster:
    """Makes a cluster of two nodes of two devices, which take turns in its order, and a slow link between."""
    devices = [get_cluster(kind).devices[0] for kind in kinds * 2]
    named = tuple(replace(device, name=f"d{at}") for at, device in enumerate(devices))
    speed = np.where(np.add.outer(np.arange(4), np.arange(4)) % 2, 1e9, 1e11)
    base = replace(get_cluster("4xv100"), name="nodes", devices=named, sharing="pair")
    return replace(base, bytes_per_s=speed, latency_s=np.full((4, 4), 1e-6))


def test_groups_lie_within_nodes_or_across_them() -> None:
    assert groups_for(two_nodes(), 2) == [((0, 2), (1, 3)), ((0, 1), (2, 3))]
    assert groups_for(get_cluster("4xv100"), 2) == [((0, 1), (2, 3))]
    assert groups_for(two_nodes(), 4) == [((0,), (2,), (1,), (3,))]
    mixed = replace(two_nodes(("4xv100", "2xk80")), bytes_per_s=np.full((4, 4), 1e10))
    assert groups_for(mixed, 2) == [((0, 2), (1, 3)), ((0, 1), (2, 3))]
    with pytest.raises(PipelineError, match="into 3 equal groups; use 1, 2, 4 replicas"):
        groups_for(two_nodes(), 3)


def test_shares_are_equal_or_by_speed() -> None:
    equal, mixed = Problem(load_family("gpt")[0], two_nodes()), two_nodes(("4xv100", "2xk80"))
    assert shares_of(equal, ((0, 2), (1, 3)), 8) == (4, 4)
    with pytest.raises(PipelineError, match="among 2 replicas; give a multiple of 2, such as 10"):
        shares_of(equal, ((0, 2), (1, 3)), 9)
    problem = Problem(equal.graph, mixed)
    fast, slow = shares_of(problem, ((0, 2), (1, 3)), 64)
    ratio = problem.single_device_s[1] / problem.single_device_s[0]
    assert fast + slow == 64
    assert fast / slow == pytest.approx(ratio, rel=0.25)
    assert shares_of(problem, ((0, 2), (1, 3)), 2) == (1, 1)


def test_a_layout_across_nodes_is_taken_where_it_is_faster() -> None:
    """Gradients are large, activations small: rings stay within nodes, and pipelines go across."""
    objective = PipelineObjective(
        Problem(load_family("gpt")[0], two_nodes()), Pipeline("1f1b", 8, replicas=2)
    )
    refine, rng = PIPELINE_PLACERS["refine"], np.random.default_rng
    found = refine.place(objective, Budget(60), rng(0))
    each = [refine.place(one, Budget(30), rng(0)) for one in objective.layouts()]
    assert found.step_time.total_s == min(one.step_time.total_s for one in each)
    assert found.placement.groups == ((0, 1), (2, 3))
    assert found.evaluations == sum(one.evaluations for one in each)


def test_placements_name_the_groups_of_replicas() -> None:
    graph, cluster = load_family("gpt")[0], two_nodes()
    objective = PipelineObjective(
        Problem(graph, cluster), Pipeline("1f1b", 8, replicas=2), groups=((1, 3), (0, 2))
    )
    stages = objective.stages(Cuts((0, 9), (1, 0)))
    record = placement_to_json(graph, cluster, stages.placement)
    assert record["groups"] == [["d1", "d3"], ["d0", "d2"]]
    again = placement_from_json(record, "file").resolve(graph, cluster)
    assert objective.simulate(again).total_s == objective.pipelined.simulate(stages).total_s
    alone = replace(objective, pipeline=Pipeline("1f1b", 8), groups=())
    with pytest.raises(PipelineError, match="has 2 groups of devices, but one replica is asked for"):
        alone.simulate(again)
    with pytest.raises(PipelineError, match="has 2 groups of devices; ask for 2 replicas, not 4"):
        replace(objective, pipeline=Pipeline("1f1b", 8, replicas=4)).simulate(again)
    with pytest.raises(PipelineError, match="is on 'd3', but the first of 2 replicas has d0, d2; place it"):
        objective.simulate(replace(again, groups=()))
    for named, message in (
        ([["d1", "d3"], ["d0", "d3"]], "groups name 'd3'; give each replica equally many"),
        ([["d1", "d3"], ["d0"]], "groups are not two or more of equal size"),
        ([["d0", "d2"], ["d1", "d3"]], "an op is on 'd1', which is not in the first of groups"),
        ([["d1", "d9"], ["d0", "d2"]], "groups name 'd9'"),
        (3, "groups: is a number; expected an array"),
    ):
        with pytest.raises(InputError, match=message):
            placement_from_json(record | {"groups": named}, "file").resolve(graph, cluster)


class Unread(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(*(nn.Linear(4, 4) for _ in range(4)))
        self.more, self.most = nn.Parameter(torch.ones(99)), nn.Parameter(torch.ones(99))


def test_parameters_that_no_op_reads_stay_in_the_first_replica() -> None:
    graph = capture(Unread(), torch.ones(2, 4), notify=lambda _: None)
    pipeline = Pipeline("1f1b", 4, replicas=2)
    objective = PipelineObjective(Problem(graph, get_cluster("4xv100")), pipeline)
    stages = objective.stages(Cuts((0, 1), (0, 1)))
    moved = cut_at_modules(objective.pipelined, stages, lambda _: True).stages
    assert len(graph.unread)
    assert moved.groups == stages.groups == ((0, 1), (2, 3))
    assert {*moved.device_of.tolist()} == {*stages.device_of.tolist()} == {0, 1}
