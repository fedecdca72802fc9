"""Replicas of a pipeline: equal to a plain simulation, to one pipeline, and to data parallelism."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envs.pipeline.groups import part_of, sharded, shares_of
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.replicas import on_groups, pipelined_of
from envs.problem import Problem
from tests.envs.pipeline.plain_replicas import plain_replicas
from tests.envs.pipeline.random_pipelines import random_pipeline_cluster, random_stages, random_training_graph

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


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    schedule=st.sampled_from(SCHEDULES),
    shape=st.sampled_from([(2, 1), (2, 2), (3, 2), (2, 3), (3, 1)]),
    are_equal=st.booleans(),
    shard=st.booleans(),
    slowdown=st.sampled_from([1.0, 1.5]),
)
def test_replicas_are_those_of_the_plain_simulation(seed, schedule, shape, are_equal, shard, slowdown):
    rng, (n_replicas, size) = np.random.default_rng(seed), shape
    problem, groups = random_case(rng, n_replicas, size, are_equal=are_equal, slowdown=slowdown)
    count = n_replicas * size * int(rng.integers(1, 3))
    pipeline = Pipeline(schedule, count, replicas=n_replicas, shard_optimizer=shard)
    whole = sharded(problem, n_replicas) if shard else problem
    parts = [part_of(whole, group) for group in groups]
    local = random_stages(rng, parts[0], size, pipeline.stages_per_device)
    if rng.random() < 0.5 or size == 1:
        local = replace(local, recomputed=(0,))
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
    busy = sum(s.finish_s[i] - s.start_s[i] for s in plain.steps for i in s.start_s)
    assert found.busy_s.sum() == pytest.approx(busy, rel=1e-9)
