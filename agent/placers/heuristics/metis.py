"""Graph partitioning: parts of equal work with little traffic between them, regardless of when they run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.heuristics.single import single
from agent.placers.units import unit_seconds
from envs.problem import Problem
from graphs.limits import MIN_SECONDS
from graphs.system.array_types import FloatArray, IntArray

IMBALANCES = (10, 50, 200, 1000)
"""Thousandths by which a part may exceed its share: a schedule may want less balance and less traffic."""
MAX_PARTS_SWEPT = 8
"""Every number of parts is tried up to here, and above it all devices alone."""
WEIGHT_RANGE = 2**24
"""Sum of the integer weights that METIS gets, whose integers have 32 bits."""
SEED = 0


class _UnitGraph(NamedTuple):
    """The undirected graph of the units, as METIS reads it."""

    ptr: IntArray  # (n_units + 1,)
    neighbour: IntArray  # (2 * n_edges,)
    traffic: IntArray  # (2 * n_edges,) at least 1


@placer("metis", stands_alone=True)
def metis(search: SearchState, rng: np.random.Generator) -> None:
    """Cuts the units into as many parts as devices, or fewer, and keeps the cut with the shortest step.

    Parts are balanced by seconds and by memory, in proportion to what the devices have, with several
    imbalances; the traffic between them is least. The fastest single device is tried last.

    Source: METIS (Karypis and Kumar 1998), through pymetis; a baseline of Mirhoseini et al. 2017.
    """
    problem = search.problem
    n_devices, n_units = problem.n_devices, len(problem.graph.units)
    seconds = unit_seconds(problem)
    speed = 1.0 / np.maximum(seconds.sum(axis=0), MIN_SECONDS)
    balances = ((seconds.mean(axis=1), speed), (problem.footprint_bytes, problem.cluster.memory_bytes))
    graph = _unit_graph(problem)
    for n_parts in range(min(n_devices, n_units), 1, -1):
        if n_parts > MAX_PARTS_SWEPT and n_parts < n_devices:
            continue
        for weight, share in balances:
            devices = np.argsort(-share, kind="stable")[:n_parts]
            for imbalance in IMBALANCES:
                if search.left:
                    part = _partition(graph, weight, share[devices], imbalance)
                    search.score_units(devices[part][None])
    if search.left:
        single(search, rng)


def _unit_graph(problem: Problem) -> _UnitGraph:
    """Lays out the units and the seconds that tensors between two of them take on an average link."""
    graph, n_units = problem.graph, len(problem.graph.units)
    seconds = problem.mean_transfer_s
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    source, target = graph.unit_of[graph.tensor_producer[tensor]], graph.unit_of[graph.consumers.items]
    between = source != target
    # A tensor goes to a unit once, however many of its ops read it.
    _, once = np.unique(tensor[between] * n_units + target[between], return_index=True)
    tensor, source, target = tensor[between][once], source[between][once], target[between][once]
    key = np.concatenate([source * n_units + target, target * n_units + source])
    edge, index = np.unique(key, return_inverse=True)
    traffic = np.bincount(index, np.tile(seconds[tensor], 2), minlength=len(edge)).astype(np.float64)
    ptr = np.zeros(n_units + 1, dtype=np.int64)
    np.cumsum(np.bincount(edge // n_units, minlength=n_units), out=ptr[1:])
    return _UnitGraph(ptr, edge % n_units, np.maximum(_as_integers(traffic), 1))


def _partition(graph: _UnitGraph, weight: FloatArray, share: FloatArray, imbalance: int) -> IntArray:
    """Part of each unit, int (n_units,); part `i` weighs about `share[i]` of the sum of all."""
    if not len(graph.neighbour):  # METIS takes no graph without edges
        ends = np.cumsum(share / share.sum()) * max(weight.sum(), MIN_SECONDS)
        middle = np.cumsum(weight) - weight / 2
        return np.minimum(np.searchsorted(ends, middle, side="right"), len(share) - 1)
    import pymetis

    parts = pymetis.part_graph(
        len(share),
        pymetis.CSRAdjacency(graph.ptr, graph.neighbour),
        vweights=_as_integers(weight),
        eweights=graph.traffic,
        tpwgts=(share / share.sum()).tolist(),
        recursive=True,
        options=pymetis.Options(seed=SEED, ufactor=imbalance),
    )
    return np.array(parts.vertex_part, dtype=np.int64)


def _as_integers(weight: FloatArray) -> IntArray:
    """Scales weights to integers that add up to about `WEIGHT_RANGE`; all are 1 where all are 0."""
    total = weight.sum()
    if total <= 0:
        return np.ones(len(weight), dtype=np.int64)
    return np.rint(weight / total * WEIGHT_RANGE).astype(np.int64)
