"""Coarsening to an op graph of at most so many placement units, and back from its placements to the ops.

A coarse unit is placed at once. Its compute ops are a segment of one topological order, so no cycle can come
up: an edge from one segment to another leads to a later one. The order is the program's, except that within
windows of it critical ops are kept apart from ops with slack; it is cut between the layers and time steps of
the model where possible.

Inputs, parameters and optimizer updates join the unit of the op that decides for them, as in every op graph.
They are ops of their own in the coarse graph, because they run before and after all else. So is any further
op that is colocated with a unit but lies in another segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphs.coarsening.layers import Layers
from graphs.coarsening.partition import balanced_partition
from graphs.coarsening.slack_order import nominal_seconds, slack_order, topological_order
from graphs.graph_columns import Csr
from graphs.graph_rules import GraphError
from graphs.nominal_costs import nominal_op_s
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

MAX_UNITS = 512
UNITS_PER_WINDOW = 8


@dataclass(frozen=True, eq=False)
class Coarsening:
    """A graph and its coarse graph.

    Attributes:
        fine, coarse: both valid, in program order. A coarse op has the name of its first op and the type of
            its longest; flops, bytes and measured seconds are sums; tensors of one producer with the same
            consumers are one.
        part: op of `coarse` that each op of `fine` is part of, int (n_ops of `fine`,).

    A sum of flops and bytes does not tell how long the ops of a part take one after the other:
    `envs.coarse_problem.CoarseProblem` times them.
    """

    fine: OpGraph
    coarse: OpGraph
    part: IntArray

    def expand(self, device_of: IntArray) -> IntArray:
        """Returns the device of each op from that of its part, int (..., n_parts) to (..., n_ops)."""
        return device_of[..., self.part]

    def total(self, amount: FloatArray) -> FloatArray:
        """Sums an amount of each op over each coarse op: (n_ops of `fine`,) to (n_ops of `coarse`,)."""
        return np.bincount(self.part, amount, minlength=self.coarse.n_ops).astype(np.float64)


def coarsen(graph: OpGraph, n_units: int = MAX_UNITS) -> Coarsening:
    """Merges the placement units of a graph into at most `n_units`.

    Units are balanced in time and in number of ops: none weighs more than a limit, the lowest that gives few
    enough units, except that an op heavier than the limit is a unit by itself. Within that limit, cuts are
    made where the ops' slack changes, else between layers, time steps or modules, in this order. Colocation
    is kept. A graph that has few enough units is left as it is.

    Raises:
        GraphError: `n_units` is less than 1.
    """
    if n_units < 1:
        raise GraphError(f"graph '{graph.name}': cannot have {n_units} placement units; ask for at least 1")
    if len(graph.units) <= n_units:
        return Coarsening(graph, graph, np.arange(graph.n_ops))
    program = np.flatnonzero(~graph.is_source)
    if not len(program):
        program = np.arange(graph.n_ops)
    order, unit = _coarse_units(graph, program, n_units)
    part = _in_program_order(graph, _parts(graph, order, unit))
    return Coarsening(graph, _coarse_graph(graph, part, unit), part)


def _coarse_units(graph: OpGraph, program: IntArray, n_units: int) -> tuple[IntArray, IntArray]:
    """A topological order of some ops, and the coarse unit of each op of the graph, int (n_ops,)."""
    layers, seconds = Layers(graph), nominal_seconds(graph)
    weight: FloatArray = seconds / max(seconds.sum(), np.finfo(float).tiny) + 1.0 / graph.n_ops
    n_windows = -(-n_units // UNITS_PER_WINDOW)
    window = balanced_partition(weight[program], layers.boundaries(program), n_windows)
    order, key = slack_order(graph, program, window)
    position = _deciding_positions(graph, order)
    deciding, key = order[position], key[position]
    # A change of slack is the best place to cut: -1 is less than any boundary of layers.
    boundary = np.where(key[1:] != key[:-1], -1, layers.boundaries(deciding))
    unit_weight = np.bincount(graph.unit_of, weight).astype(np.float64)
    coarse_unit = np.empty(len(graph.units), dtype=np.int64)
    coarse_unit[graph.unit_of[deciding]] = balanced_partition(
        unit_weight[graph.unit_of[deciding]], boundary, n_units
    )
    return order, coarse_unit[graph.unit_of]


def _deciding_positions(graph: OpGraph, order: IntArray) -> IntArray:
    """Positions in an order of the op that decides for each unit: its first compute op, else its first op."""
    compute_first = np.lexsort((np.arange(len(order)), ~graph.is_compute[order]))
    _, at = np.unique(graph.unit_of[order][compute_first], return_index=True)
    return np.sort(compute_first[at])


def _parts(graph: OpGraph, order: IntArray, unit: IntArray) -> IntArray:
    """Coarse op of each op, int (n_ops,), not yet numbered in program order.

    Compute ops are one part while neither unit nor phase changes along the order. Updates that nothing reads
    are moved to the end and sorted by unit, so that they split no part. Parameters and inputs of a unit are
    one part per type.
    """
    is_last = (np.diff(graph.successors.ptr) == 0) & ~graph.is_compute
    last = order[is_last[order]]
    order = np.concatenate([order[~is_last[order]], last[np.argsort(unit[last], kind="stable")]])
    order = order[~graph.is_source[order]]
    phase = _codes(graph.phases)
    changes = (np.diff(unit[order]) != 0) | (np.diff(phase[order]) != 0)
    part = np.empty(graph.n_ops, dtype=np.int64)
    part[order] = np.concatenate([[0], np.cumsum(changes)])[: len(order)]
    source = np.flatnonzero(graph.is_source)
    unit_and_type = np.stack([unit[source], _codes(graph.op_types)[source]], axis=1)
    first = int(part[order].max(initial=-1)) + 1
    part[source] = first + np.unique(unit_and_type, axis=0, return_inverse=True)[1].ravel()
    return part


def _in_program_order(graph: OpGraph, part: IntArray) -> IntArray:
    """Renumbers coarse ops topologically and close to program order, by their middle ops."""
    n_parts = int(part.max()) + 1
    members = Csr.from_pairs(part, np.arange(graph.n_ops), n_parts)
    middle = members.items[(members.ptr[:-1] + members.ptr[1:]) // 2]
    # A source comes right before its first reader.
    reader = np.full(graph.n_ops, graph.n_ops)
    np.minimum.at(reader, graph.edges[:, 0], middle[part[graph.edges[:, 1]]])
    first_reader = np.minimum.reduceat(reader[members.items], members.ptr[:-1])
    is_source = graph.is_source[middle]
    by_middle = np.lexsort((middle, ~is_source, np.where(is_source, first_reader, middle)))
    rank = np.empty(n_parts, dtype=np.int64)
    rank[by_middle] = np.arange(n_parts)
    pairs = rank[part[graph.edges]]
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    number = np.empty(n_parts, dtype=np.int64)
    number[topological_order(n_parts, pairs)] = np.arange(n_parts)
    return number[rank[part]]


def _coarse_graph(graph: OpGraph, part: IntArray, unit: IntArray) -> OpGraph:
    """The coarse graph; a sum of ops is no one product, so `dtypes` and `gemm` are not kept."""
    n_parts = int(part.max()) + 1
    members = Csr.from_pairs(part, np.arange(graph.n_ops), n_parts)
    first = members.items[members.ptr[:-1]]
    longest_last = np.lexsort((-np.arange(graph.n_ops), nominal_op_s(graph), part))
    longest = longest_last[members.ptr[1:] - 1]
    shared = np.bincount(unit[first])[unit[first]] > 1
    producer, size, consumers = _coarse_tensors(graph, part)

    def total(amount: FloatArray) -> FloatArray:
        return np.bincount(part, amount, minlength=n_parts).astype(np.float64)

    return OpGraph(
        name=graph.name,
        family=graph.family,
        op_names=_select(graph.op_names, first),
        op_types=_select(graph.op_types, longest),
        modules=tuple(_common_path({graph.modules[op] for op in members.row(at)}) for at in range(n_parts)),
        phases=_select(graph.phases, first),
        flops=total(graph.flops),
        bytes_moved=total(graph.bytes_moved),
        resident_bytes=total(graph.resident_bytes),
        colocate=np.where(shared, unit[first], -1),
        tensor_producer=producer,
        tensor_bytes=size,
        consumers=consumers,
        seconds={kind: total(seconds) for kind, seconds in graph.seconds.items()},
    )


def _coarse_tensors(graph: OpGraph, part: IntArray) -> tuple[IntArray, FloatArray, Csr]:
    """Producer, bytes and consumers of the tensors between coarse ops; tensors of the same ends are one."""
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    source, reader = part[graph.tensor_producer], part[graph.consumers.items]
    crosses = reader != source[tensor]
    pairs = np.unique(np.stack([tensor[crosses], reader[crosses]], axis=1), axis=0)
    readers = Csr.from_pairs(pairs[:, 0], pairs[:, 1], graph.n_tensors)
    ptr, items = readers.ptr.tolist(), readers.items
    bytes_of: dict[tuple[int, bytes], float] = {}
    for index, (producer, size) in enumerate(zip(source.tolist(), graph.tensor_bytes.tolist(), strict=True)):
        if ptr[index] < ptr[index + 1]:
            ends = (producer, items[ptr[index] : ptr[index + 1]].tobytes())
            bytes_of[ends] = bytes_of.get(ends, 0.0) + size
    rows = [np.frombuffer(row, dtype=np.int64) for _, row in bytes_of]
    lengths = np.array([0, *map(len, rows)], dtype=np.int64)
    producers = np.array([producer for producer, _ in bytes_of], dtype=np.int64)
    consumers = Csr(np.cumsum(lengths), np.concatenate([*rows, np.zeros(0, dtype=np.int64)]))
    return producers, np.array(list(bytes_of.values()), dtype=np.float64), consumers


def _codes(values: tuple[str, ...]) -> NDArray[np.int64]:
    return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)


def _select(values: tuple[str, ...], ops: IntArray) -> tuple[str, ...]:
    return tuple(values[op] for op in ops.tolist())


def _common_path(paths: set[str]) -> str:
    """The innermost module around all of them; the root is empty."""
    split = [path.split(".") for path in paths]
    shared = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
