"""The groups of devices that run replicas of a pipeline, and the part of a problem that each of them has."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envs.cluster.cluster import Cluster
from envs.costs.op_seconds import op_seconds
from envs.pipeline.pipeline import PipelineError
from envs.problem import Problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened

ROUNDING = 1e-9
"""Relative difference of speeds that are equal."""

Groups = tuple[tuple[int, ...], ...]
"""Devices of each replica; those at one position have the same stages."""


def groups_for(cluster: Cluster, n_replicas: int) -> list[Groups]:
    """Lists the ways to divide devices into equal groups that differ in kinds of devices or links.

    Devices are lined up so that the next one has the fastest link to one before it, those of a kind together
    where there are several. A replica takes devices that follow each other, as of a node, or one of each
    such run, so that the ring of a stage stays in a node. The same is tried with kinds mixed.

    Raises:
        PipelineError: the number of devices is no multiple of that of the replicas.
    """
    n_devices = cluster.n_devices
    if n_devices % n_replicas:
        divisors = [str(count) for count in range(1, n_devices + 1) if n_devices % count == 0]
        raise PipelineError(
            f"the {n_devices} devices of cluster '{shortened(cluster.name)}' cannot be divided into "
            f"{n_replicas} equal groups; use {', '.join(divisors)} replicas"
        )
    ways: dict[bytes, Groups] = {}
    for by_kind in (True, False):
        line = np.array(_nearest_first(cluster, by_kind))
        for groups in (line.reshape(n_replicas, -1), line.reshape(-1, n_replicas).T):
            ways.setdefault(_described(cluster, groups.ravel()), tuple(map(tuple, groups.tolist())))
    return list(ways.values())


def _nearest_first(cluster: Cluster, by_kind: bool) -> list[int]:
    """Lines devices up, each time the one with the fastest link to one before; ends of a link may differ."""
    speed, kind = np.minimum(cluster.bytes_per_s, cluster.bytes_per_s.T), _kinds(cluster)
    line, near = [0], np.array(speed[0])
    while len(line) < cluster.n_devices:
        same = (kind == kind[line[-1]]) & by_kind
        others = np.setdiff1d(np.arange(cluster.n_devices), line)
        line.append(int(others[np.lexsort((-near[others], ~same[others]))[0]]))
        near = np.maximum(near, speed[line[-1]])
    return line


def _kinds(cluster: Cluster) -> IntArray:
    """Number of the kind of each device, int64 (n_devices,)."""
    unnamed = [replace(device, name="-") for device in cluster.devices]
    return np.array([unnamed.index(device) for device in unnamed])


def _described(cluster: Cluster, devices: IntArray) -> bytes:
    """Describes devices in an order, and the links between them, without their names."""
    pairs = np.ix_(devices, devices)
    links = [cluster.bytes_per_s[pairs], cluster.latency_s[pairs], cluster.n_half_matrix[pairs]]
    between = ~np.eye(len(devices), dtype=bool)
    return b"".join([_kinds(cluster)[devices].tobytes(), *(matrix[between].tobytes() for matrix in links)])


def shares_of(problem: Problem, groups: Groups, n_microbatches: int) -> tuple[int, ...]:
    """Returns the microbatches of each replica: equally many, or in proportion to the speed of its devices.

    Raises:
        PipelineError: the groups are equally fast, and cannot have equally many.
    """
    with np.errstate(divide="ignore"):
        speeds = [float(np.sort(1.0 / problem.single_device_s[list(group)]).sum()) for group in groups]
    n_replicas = len(groups)
    if not np.isfinite(speeds).all() or max(speeds) <= (1 + ROUNDING) * min(speeds):
        share, rest = divmod(n_microbatches, n_replicas)
        if rest:
            raise PipelineError(
                f"{n_microbatches} microbatches cannot be divided equally among {n_replicas} replicas; give "
                f"a multiple of {n_replicas}, such as {(share + 1) * n_replicas}"
            )
        return (share,) * n_replicas
    shares = [1] * n_replicas
    ends = [(2 / speed, replica) for replica, speed in enumerate(speeds)]
    heapq.heapify(ends)
    for _ in range(n_microbatches - n_replicas):
        replica = ends[0][1]
        shares[replica] += 1
        heapq.heapreplace(ends, ((shares[replica] + 1) / speeds[replica], replica))
    return tuple(shares)


def part_of(problem: Problem, devices: Sequence[int]) -> Problem:
    """Returns the problem of placing the graph on some of the devices alone, in the order given."""
    cluster, pairs = problem.cluster, np.ix_(devices, devices)
    some = replace(
        cluster,
        name=f"{cluster.name}, {len(devices)} of its devices",
        devices=tuple(cluster.devices[device] for device in devices),
        bytes_per_s=cluster.bytes_per_s[pairs],
        latency_s=cluster.latency_s[pairs],
        n_half_bytes=np.array(cluster.n_half_matrix[pairs]),
    )
    return Problem(problem.graph, some, np.ascontiguousarray(problem.op_seconds[:, list(devices)]))


def sharded(problem: Problem, n_replicas: int) -> Problem:
    """Returns the problem of one of the replicas that divide the optimizer's states and updates.

    The states are what a placement unit with an update keeps besides its weights and gradients, such as
    moments and master weights. An update works on one of so many equal parts of its elements.
    """
    graph = problem.graph
    weights, gradients = updated_bytes(graph)
    resident = np.bincount(graph.unit_of, graph.resident_bytes, len(graph.units))
    states = np.where(gradients > 0, resident - weights - gradients, 0.0).clip(0.0)
    divided = states * (1.0 - 1.0 / n_replicas) / np.where(resident > 0, resident, 1.0)
    part = np.where(np.array(graph.phases) == "optimizer", 1.0 / n_replicas, 1.0)
    less = replace(
        graph,
        flops=graph.flops * part,
        bytes_moved=graph.bytes_moved * part,
        seconds={kind: seconds * part for kind, seconds in graph.seconds.items()},
        resident_bytes=graph.resident_bytes * (1.0 - divided[graph.unit_of]),
    )
    if problem.seconds is not None:
        return Problem(less, problem.cluster, problem.seconds * part[:, None])
    return Problem(less, problem.cluster, op_seconds(less, problem.cluster))


def updated_bytes(graph: OpGraph) -> tuple[FloatArray, FloatArray]:
    """Sums the weights of each placement unit, and the gradients that its updates read.

    Returns:
        Bytes, (n_units,) each.
    """
    phases, owner = np.array(graph.phases), graph.tensor_owner
    maker = graph.tensor_producer
    is_weight, is_gradient = owner == maker, (owner >= 0) & (phases[maker] == "backward")
    weights, gradients = (
        np.bincount(graph.unit_of[owner[mask]], graph.tensor_bytes[mask], len(graph.units)).astype(np.float64)
        for mask in (is_weight, is_gradient)
    )
    return weights, gradients
