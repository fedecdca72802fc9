"""From ops to at most so many groups, as a smaller op graph; and from its placements back to the ops.

A group is decided at once. Its running ops are a stretch of one topological order, so no cycle can come up:
what leads from one stretch to another leads to a later one. The order is the program's, but that within
windows of it ops which the step waits for stand apart from those which have time; it is cut between the
layers and time steps of the model where that can be.

Inputs, parameters and optimizer updates join the group of the op that decides for them, as everywhere; they
are ops of their own in the coarse graph, because they run before and after all else. So is any further op
that is colocated with a group but stands in another stretch.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from graphs.coarsening.layers import Blocks
from graphs.coarsening.partition import even_cuts
from graphs.coarsening.slack_order import nominal_seconds, slack_order, topological_order
from graphs.op_graph import Csr, FloatArray, GraphError, IntArray, OpGraph
from graphs.orders import nominal_op_s

GROUPS = 512
GROUPS_A_WINDOW = 8


@dataclass(frozen=True, eq=False)
class Coarsening:
    """A graph and its coarse graph.

    Attributes:
        fine, coarse: both valid, in program order. A coarse op has the name of its first op and the type of
            its longest; flops, bytes and measured seconds are sums; tensors of one producer with the same
            consumers are one.
        part: op of `coarse` that each op of `fine` is in, int (n_ops of `fine`,).

    A sum of flops and bytes does not tell how long the ops of a group take one after the other:
    `envs.coarse_problem.CoarseProblem` times them.
    """

    fine: OpGraph
    coarse: OpGraph
    part: IntArray

    def expand(self, device_of: IntArray) -> IntArray:
        """Device of every op, from that of every coarse op; int (..., n_ops of `coarse`) to (..., n_ops)."""
        return device_of[..., self.part]

    def total(self, amount: FloatArray) -> FloatArray:
        """Sum an amount of each op over each coarse op, (n_ops of `fine`,) to (n_ops of `coarse`,)."""
        return np.bincount(self.part, amount, minlength=self.coarse.n_ops).astype(np.float64)


def coarsen(graph: OpGraph, n_groups: int = GROUPS) -> Coarsening:
    """Put the ops of a graph into at most `n_groups` groups: decision units of the coarse graph.

    Groups are as even as can be, in time and in ops: a group weighs no more than a limit, the lightest with
    which there are few enough, and an op heavier than that is a group by itself. Within that, cuts are made
    where the ops' slack changes, else between layers, time steps or modules, in this order. Colocation is
    kept. A graph that has few enough decision units is left as it is.

    Raises:
        GraphError: less than one group is asked for.
    """
    if n_groups < 1:
        raise GraphError(f"graph '{graph.name}': cannot have {n_groups} groups; ask for at least 1")
    if len(graph.units) <= n_groups:
        return Coarsening(graph, graph, np.arange(graph.n_ops))
    order = np.flatnonzero(~graph.is_source)
    if not len(order):
        order = np.arange(graph.n_ops)
    order, group = _groups(graph, order, n_groups)
    part = _in_program_order(graph, _parts(graph, order, group))
    return Coarsening(graph, _coarse_graph(graph, part, group), part)


def _groups(graph: OpGraph, program: IntArray, n_groups: int) -> tuple[IntArray, IntArray]:
    """A topological order of some ops, and the group of each op, int (n_ops,): that of its unit's first."""
    blocks, seconds = Blocks(graph), nominal_seconds(graph)
    weight: FloatArray = seconds / max(seconds.sum(), np.finfo(float).tiny) + 1.0 / graph.n_ops
    n_windows = -(-n_groups // GROUPS_A_WINDOW)
    window = even_cuts(weight[program], blocks.between(program), n_windows)
    order, key = slack_order(graph, program, window)
    leading = _leading(graph, order)
    leads, key = order[leading], key[leading]
    # Cuts are best where the slack changes: -1 is less than what lies between any blocks.
    between = np.where(key[1:] != key[:-1], -1, blocks.between(leads))
    of_unit = np.bincount(graph.unit_of, weight).astype(np.float64)
    group_of_unit = np.empty(len(graph.units), dtype=np.int64)
    group_of_unit[graph.unit_of[leads]] = even_cuts(of_unit[graph.unit_of[leads]], between, n_groups)
    return order, group_of_unit[graph.unit_of]


def _leading(graph: OpGraph, order: IntArray) -> IntArray:
    """Where in an order the op stands that decides for each unit: its first compute op, else its first."""
    compute_first = np.lexsort((np.arange(len(order)), ~graph.is_compute[order]))
    _, at = np.unique(graph.unit_of[order][compute_first], return_index=True)
    return np.sort(compute_first[at])


def _parts(graph: OpGraph, order: IntArray, group: IntArray) -> IntArray:
    """Coarse op of each op, int (n_ops,), in no particular order.

    Running ops are one while neither group nor phase changes along the order, moved to the end and sorted by
    group where they only colour their group's results: updates that nothing reads. Parameters and inputs of
    a group are one op of their type.
    """
    is_last = (np.diff(graph.successors.ptr) == 0) & ~graph.is_compute
    last = order[is_last[order]]
    order = np.concatenate([order[~is_last[order]], last[np.argsort(group[last], kind="stable")]])
    order = order[~graph.is_source[order]]
    phase = _codes(graph.phases)
    changes = (np.diff(group[order]) != 0) | (np.diff(phase[order]) != 0)
    part = np.empty(graph.n_ops, dtype=np.int64)
    part[order] = np.concatenate([[0], np.cumsum(changes)])[: len(order)]
    free = np.flatnonzero(graph.is_source)
    kinds = np.stack([group[free], _codes(graph.op_types)[free]], axis=1)
    first = int(part[order].max(initial=-1)) + 1
    part[free] = first + np.unique(kinds, axis=0, return_inverse=True)[1].ravel()
    return part


def _in_program_order(graph: OpGraph, part: IntArray) -> IntArray:
    """Renumber coarse ops topologically, as near to the program as can be: by their middle ops."""
    n_parts = int(part.max()) + 1
    members = Csr.from_pairs(part, np.arange(graph.n_ops), n_parts)
    middle = members.items[(members.ptr[:-1] + members.ptr[1:]) // 2]
    # What takes no time stands right before what first reads it.
    reader = np.full(graph.n_ops, graph.n_ops)
    np.minimum.at(reader, graph.edges[:, 0], middle[part[graph.edges[:, 1]]])
    first_reader = np.minimum.reduceat(reader[members.items], members.ptr[:-1])
    free = graph.is_source[middle]
    by_middle = np.lexsort((middle, ~free, np.where(free, first_reader, middle)))
    rank = np.empty(n_parts, dtype=np.int64)
    rank[by_middle] = np.arange(n_parts)
    pairs = rank[part[graph.edges]]
    pairs = np.unique(pairs[pairs[:, 0] != pairs[:, 1]], axis=0)
    number = np.empty(n_parts, dtype=np.int64)
    number[topological_order(n_parts, pairs)] = np.arange(n_parts)
    return number[rank[part]]


def _coarse_graph(graph: OpGraph, part: IntArray, group: IntArray) -> OpGraph:
    n_parts = int(part.max()) + 1
    members = Csr.from_pairs(part, np.arange(graph.n_ops), n_parts)
    first = members.items[members.ptr[:-1]]
    longest_last = np.lexsort((-np.arange(graph.n_ops), nominal_op_s(graph), part))
    longest = longest_last[members.ptr[1:] - 1]
    shared = np.bincount(group[first])[group[first]] > 1
    producer, size, consumers = _coarse_tensors(graph, part)

    def total(amount: FloatArray) -> FloatArray:
        return np.bincount(part, amount, minlength=n_parts).astype(np.float64)

    return OpGraph(
        name=graph.name,
        family=graph.family,
        op_names=_taken(graph.op_names, first),
        op_types=_taken(graph.op_types, longest),
        modules=tuple(_common_path({graph.modules[op] for op in members.row(at)}) for at in range(n_parts)),
        phases=_taken(graph.phases, first),
        flops=total(graph.flops),
        bytes_moved=total(graph.bytes_moved),
        resident_bytes=total(graph.resident_bytes),
        colocate=np.where(shared, group[first], -1),
        tensor_producer=producer,
        tensor_bytes=size,
        consumers=consumers,
        seconds={kind: total(seconds) for kind, seconds in graph.seconds.items()},
    )


def _coarse_tensors(graph: OpGraph, part: IntArray) -> tuple[IntArray, FloatArray, Csr]:
    """Producer, bytes and consumers of the tensors between coarse ops; those of the same ends are one."""
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    source, reader = part[graph.tensor_producer], part[graph.consumers.items]
    crosses = reader != source[tensor]
    pairs = np.unique(np.stack([tensor[crosses], reader[crosses]], axis=1), axis=0)
    readers = Csr.from_pairs(pairs[:, 0], pairs[:, 1], graph.n_tensors)
    ptr, items = readers.ptr.tolist(), readers.items
    bytes_of: dict[tuple[int, bytes], float] = {}
    for index, (maker, size) in enumerate(zip(source.tolist(), graph.tensor_bytes.tolist(), strict=True)):
        if ptr[index] < ptr[index + 1]:
            ends = (maker, items[ptr[index] : ptr[index + 1]].tobytes())
            bytes_of[ends] = bytes_of.get(ends, 0.0) + size
    rows = [np.frombuffer(read, dtype=np.int64) for _, read in bytes_of]
    lengths = np.array([0, *map(len, rows)], dtype=np.int64)
    producer = np.array([maker for maker, _ in bytes_of], dtype=np.int64)
    consumers = Csr(np.cumsum(lengths), np.concatenate([*rows, np.zeros(0, dtype=np.int64)]))
    return producer, np.array(list(bytes_of.values()), dtype=np.float64), consumers


def _codes(values: tuple[str, ...]) -> NDArray[np.int64]:
    return np.unique(np.array(values), return_inverse=True)[1].astype(np.int64)


def _taken(values: tuple[str, ...], ops: IntArray) -> tuple[str, ...]:
    return tuple(values[op] for op in ops.tolist())


def _common_path(paths: set[str]) -> str:
    """The innermost module that holds all of them; the root is empty."""
    split = [path.split(".") for path in paths]
    shared = []
    for names in zip(*split, strict=False):
        if len(set(names)) > 1:
            break
        shared.append(names[0])
    return ".".join(shared)
