"""Placement units: their work, their memory footprint, and the order in which their layers run."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.problem import Problem
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray


class Units(NamedTuple):
    """The placement units of a graph, as the kernels read them.

    Rows of `x` are `x_item[x_ptr[i]:x_ptr[i + 1]]`. Arrays are int64 or float64.
    """

    of_op: IntArray  # (n_ops,)
    member_ptr: IntArray  # (n_units + 1,) ops of a unit
    member_item: IntArray
    near_ptr: IntArray  # (n_units + 1,) units it exchanges tensors with
    near_item: IntArray
    footprint_bytes: FloatArray  # (n_units,) bytes kept for most of the step
    seconds: FloatArray  # (n_units, n_devices) work


def units_of(problem: Problem) -> Units:
    """Lays out the placement units of a problem's graph, with their neighbours."""
    graph = problem.graph
    near = neighbours(graph)
    return Units(
        of_op=graph.unit_of,
        member_ptr=graph.units.ptr,
        member_item=graph.units.items,
        near_ptr=near.ptr,
        near_item=near.items,
        footprint_bytes=problem.footprint_bytes,
        seconds=unit_seconds(problem),
    )


def neighbours(graph: OpGraph) -> Csr:
    """Lists the units that each unit exchanges tensors with."""
    n_units = len(graph.units)
    pairs = graph.unit_of[graph.edges]
    pairs = pairs[pairs[:, 0] != pairs[:, 1]]
    both = np.concatenate([pairs, pairs[:, ::-1]])
    keys = np.unique(both[:, 0] * n_units + both[:, 1])
    return Csr.from_pairs(keys // n_units, keys % n_units, n_units)


def unit_seconds(problem: Problem) -> FloatArray:
    """Sums the seconds of each unit's ops on each device, (n_units, n_devices)."""
    n_units = len(problem.graph.units)
    seconds = np.zeros((n_units, problem.n_devices))
    np.add.at(seconds, problem.graph.unit_of, problem.op_seconds)
    return seconds


def units_by_program(graph: OpGraph) -> IntArray:
    """Lists the units by their first op in program order, int (n_units,)."""
    return np.arange(len(graph.units))


def units_by_layer(graph: OpGraph) -> IntArray:
    """Lists the units in forward order, each backward unit beside its forward unit, int (n_units,).

    A backward op is placed where the last forward result or weight that it reads was made; one that reads
    gradients alone, with the earliest of their producers. Segments of this order are the pipeline stages that
    an engineer would draw: a stage runs the backward of its own layers.
    """
    forward = np.array([phase == "forward" for phase in graph.phases], dtype=bool)
    anchor = np.where(forward, np.arange(graph.n_ops), -1)
    producer, consumer = graph.edges.T
    from_forward = forward[producer] & ~forward[consumer]
    np.maximum.at(anchor, consumer[from_forward], producer[from_forward])
    for op in np.flatnonzero(anchor < 0):
        anchor[op] = anchor[graph.predecessors.row(int(op))].min(initial=op)
    rank = np.where(graph.is_compute, np.arange(graph.n_ops), np.arange(graph.n_ops) + graph.n_ops)
    leader = np.full(len(graph.units), 2 * graph.n_ops)
    np.minimum.at(leader, graph.unit_of, rank)
    return np.argsort(anchor[leader % graph.n_ops], kind="stable")


def per_unit(graph: OpGraph, device_of: IntArray) -> IntArray:
    """Converts the device of each op, int (n_ops,), to that of each placement unit, int (n_units,)."""
    return device_of[graph.units.items[graph.units.ptr[:-1]]]


def units_depth_first(graph: OpGraph) -> IntArray:
    """Lists the units from neighbour to neighbour, depth first in program order, int (n_units,).

    Segments of this order are subtrees and paths, which few tensors leave, whatever the program order is.
    """
    near, order = neighbours(graph), list[int]()
    is_listed = np.zeros(len(near), dtype=bool)
    waiting = list(range(len(near) - 1, -1, -1))
    while waiting:
        unit = waiting.pop()
        if not is_listed[unit]:
            is_listed[unit] = True
            order.append(unit)
            waiting += near.row(unit)[::-1].tolist()
    return np.array(order, dtype=np.int64)
