"""The op graph of one training (or inference) step: ops in program order, tensors first class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import networkx as nx
import numpy as np
from numpy.typing import NDArray

from graphs.io.json_files import FileFormatError
from graphs.op_records import parse_ops

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]

PHASES = ("forward", "backward", "optimizer")
SOURCE_TYPES = ("parameter", "input")
"""Types of ops that are available from time 0 and never occupy a device."""


class GraphError(ValueError):
    """A graph that breaks a rule of `OpGraph`; the message says which, where, and what would be right."""


@dataclass(frozen=True)
class Csr:
    """Ragged integer rows: row `i` is `items[ptr[i]:ptr[i + 1]]`."""

    ptr: IntArray
    items: IntArray

    def row(self, index: int) -> IntArray:
        """Items of one row, int (length of the row,)."""
        return self.items[self.ptr[index] : self.ptr[index + 1]]

    def __len__(self) -> int:
        return len(self.ptr) - 1

    @staticmethod
    def from_pairs(rows: IntArray, items: IntArray, n_rows: int) -> Csr:
        """Groups `items` by `rows`; items of one row keep their sequence.

        Args:
            rows: row of each item, int (n,).
            items: int (n,).
            n_rows: number of rows, empty ones included.
        """
        ptr = np.zeros(n_rows + 1, dtype=np.int64)
        np.cumsum(np.bincount(rows, minlength=n_rows), out=ptr[1:])
        return Csr(ptr, items[np.argsort(rows, kind="stable")])


@dataclass(frozen=True, eq=False)
class OpGraph:
    """Ops in program order (every producer before its consumers) and the tensors between them.

    Attributes:
        name, family: what the graph is and the model family it belongs to.
        op_names, op_types, modules, phases: one string per op; names are unique, `phases` are from `PHASES`.
        flops: floating-point operations, (n_ops,).
        bytes_moved: memory traffic in bytes, (n_ops,).
        resident_bytes: what the op keeps all step (parameters, gradients, optimizer state), (n_ops,).
        colocate: int (n_ops,); ops with the same id >= 0 go on one device, -1 is no id.
        seconds: measured seconds per device kind, each (n_ops,), NaN where not measured.
        tensor_producer: op that makes each tensor, int (n_tensors,).
        tensor_bytes: size of each tensor in bytes, (n_tensors,).
        consumers: ops that read each tensor, one row per tensor, ascending and distinct.

    Raises:
        GraphError: on construction, if a rule above is broken.
    """

    name: str
    family: str
    op_names: tuple[str, ...]
    op_types: tuple[str, ...]
    modules: tuple[str, ...]
    phases: tuple[str, ...]
    flops: FloatArray
    bytes_moved: FloatArray
    resident_bytes: FloatArray
    colocate: IntArray
    tensor_producer: IntArray
    tensor_bytes: FloatArray
    consumers: Csr
    seconds: Mapping[str, FloatArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _check(self)

    @property
    def n_ops(self) -> int:
        """Number of ops, sources (parameters and inputs) included."""
        return len(self.op_names)

    @property
    def n_tensors(self) -> int:
        """Number of tensors."""
        return len(self.tensor_producer)

    @cached_property
    def is_source(self) -> NDArray[np.bool_]:
        """Whether an op never occupies a device (parameters and inputs), bool (n_ops,)."""
        return np.array([kind in SOURCE_TYPES for kind in self.op_types], dtype=bool)

    @cached_property
    def outputs(self) -> Csr:
        """Tensors each op produces, ascending."""
        return Csr.from_pairs(self.tensor_producer, np.arange(self.n_tensors), self.n_ops)

    @cached_property
    def inputs(self) -> Csr:
        """Tensors each op reads, in the order of their producers (then of the tensors)."""
        tensor = np.repeat(np.arange(self.n_tensors), np.diff(self.consumers.ptr))
        by_producer = np.argsort(self.tensor_producer[tensor], kind="stable")
        return Csr.from_pairs(self.consumers.items[by_producer], tensor[by_producer], self.n_ops)

    @cached_property
    def edges(self) -> IntArray:
        """Distinct (producer, consumer) pairs, sorted, int (n_edges, 2)."""
        producer = np.repeat(self.tensor_producer, np.diff(self.consumers.ptr))
        keys = np.unique(producer * self.n_ops + self.consumers.items)
        return np.stack([keys // max(self.n_ops, 1), keys % max(self.n_ops, 1)], axis=1)

    @cached_property
    def predecessors(self) -> Csr:
        """Ops whose outputs each op reads, ascending."""
        return Csr.from_pairs(self.edges[:, 1], self.edges[:, 0], self.n_ops)

    @cached_property
    def successors(self) -> Csr:
        """Ops that read an output of each op, ascending."""
        return Csr.from_pairs(self.edges[:, 0], self.edges[:, 1], self.n_ops)

    @cached_property
    def tensor_owner(self) -> IntArray:
        """Op whose `resident_bytes` already count a tensor, else -1; int (n_tensors,).

        Weights are counted by their parameter, and gradients by the parameter that their optimizer update is
        colocated with; on that op's device they take no further memory.
        """
        owner = np.full(self.n_tensors, -1, dtype=np.int64)
        is_parameter = np.array([kind == "parameter" for kind in self.op_types], dtype=bool)
        of_parameter = is_parameter[self.tensor_producer]
        owner[of_parameter] = self.tensor_producer[of_parameter]
        reader = self.consumers.items
        is_update = np.array([phase == "optimizer" for phase in self.phases], dtype=bool)
        tensor = np.repeat(np.arange(self.n_tensors), np.diff(self.consumers.ptr))
        gradient = is_update[reader] & ~of_parameter[tensor]
        owner[tensor[gradient]] = reader[gradient]
        return owner

    @cached_property
    def is_compute(self) -> NDArray[np.bool_]:
        """Whether an order visits the op, bool (n_ops,).

        It never visits parameters and inputs, nor an update that a colocated compute op decides for.
        """
        update = np.array([phase == "optimizer" for phase in self.phases], dtype=bool)
        with_compute = np.unique(self.colocate[~self.is_source & ~update])
        decided = np.isin(self.colocate, with_compute) & (self.colocate >= 0)
        compute: NDArray[np.bool_] = ~self.is_source & ~(update & decided)
        return compute

    @cached_property
    def unit_of(self) -> IntArray:
        """Placement unit of each op, int (n_ops,), numbered from 0 by first op in program order.

        The ops of a unit go on one device: those with the same `colocate`. If none of them is a compute op (a
        stray parameter or input), they join the unit of their first consumer or, where nothing consumes them,
        of the first compute op. So a compute op decides for every unit.
        """
        label = np.where(self.colocate >= 0, self.n_ops + self.colocate, np.arange(self.n_ops))
        compute = np.flatnonzero(self.is_compute)
        decided = set(label[compute].tolist())
        for own in sorted(set(label.tolist()) - decided):
            members = [int(op) for op in np.flatnonzero(label == own)]
            readers = [int(self.successors.row(op)[0]) for op in members if len(self.successors.row(op))]
            leader = min(readers, default=int(compute[0]) if len(compute) else members[0])
            label[members] = label[leader]
        _, first, unit = np.unique(label, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[unit]

    @cached_property
    def units(self) -> Csr:
        """Ops of each placement unit, ascending; rows are numbered as in `unit_of`."""
        n_units = int(self.unit_of.max()) + 1 if self.n_ops else 0
        return Csr.from_pairs(self.unit_of, np.arange(self.n_ops), n_units)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Makes a graph of ops by program index; each tensor is an edge with `bytes` to each consumer."""
        view = nx.MultiDiGraph(name=self.name, family=self.family)
        for op, op_name in enumerate(self.op_names):
            view.add_node(
                op,
                name=op_name,
                type=self.op_types[op],
                phase=self.phases[op],
                module=self.modules[op],
                flops=float(self.flops[op]),
                bytes_moved=float(self.bytes_moved[op]),
                resident_bytes=float(self.resident_bytes[op]),
                colocate=int(self.colocate[op]),
            )
        for tensor in range(self.n_tensors):
            producer = int(self.tensor_producer[tensor])
            for reader in self.consumers.row(tensor):
                view.add_edge(producer, int(reader), tensor=tensor, bytes=float(self.tensor_bytes[tensor]))
        return view


def build_graph(
    name: str,
    family: str,
    ops: Sequence[Mapping[str, object]],
    tensors: Sequence[tuple[int, float, Sequence[int]]],
) -> OpGraph:
    """Makes an `OpGraph` from per-op records and (producer, bytes, consumers) triples.

    Args:
        ops: one mapping per op with the keys of the graph file format; only `name` is required.
        tensors: producer index, size in bytes, consumer indices.

    Raises:
        GraphError: a record breaks the graph file format, or the graph a rule of `OpGraph`.
    """
    try:
        columns = parse_ops(ops, f"graph '{name}': op")
    except FileFormatError as error:
        raise GraphError(str(error)) from None
    rows = [np.unique(np.asarray(readers, dtype=np.int64)) for _, _, readers in tensors]
    ptr = np.zeros(len(tensors) + 1, dtype=np.int64)
    np.cumsum([len(row) for row in rows], out=ptr[1:])
    return OpGraph(
        name=name,
        family=family,
        tensor_producer=np.array([producer for producer, _, _ in tensors], dtype=np.int64),
        tensor_bytes=np.array([size for _, size, _ in tensors], dtype=np.float64),
        consumers=Csr(ptr, np.concatenate([*rows, np.zeros(0, dtype=np.int64)])),
        **columns,
    )


def _check(graph: OpGraph) -> None:
    where = f"graph '{graph.name}'"
    n_ops, n_tensors = graph.n_ops, graph.n_tensors
    if n_ops == 0:
        raise GraphError(f"{where}: has no ops; give at least one")
    for label in ("op_types", "modules", "phases", "flops", "bytes_moved", "resident_bytes", "colocate"):
        if len(getattr(graph, label)) != n_ops:
            raise GraphError(f"{where}: {label} has {len(getattr(graph, label))} entries for {n_ops} ops")
    if len(set(graph.op_names)) != n_ops:
        seen: set[str] = set()
        twice = next(name for name in graph.op_names if name in seen or seen.add(name))  # type: ignore[func-returns-value]
        raise GraphError(f"{where}: two ops are named '{twice}'; op names must be unique")
    for op, phase in enumerate(graph.phases):
        if phase not in PHASES:
            raise GraphError(
                f"{where}: op {op} ('{graph.op_names[op]}') has phase '{phase}'; "
                f"use one of {', '.join(PHASES)}"
            )
    for label in ("flops", "bytes_moved", "resident_bytes"):
        _check_amounts(where, label, getattr(graph, label), graph.op_names)
    for kind, values in graph.seconds.items():
        if len(values) != n_ops:
            raise GraphError(f"{where}: seconds of '{kind}' has {len(values)} entries for {n_ops} ops")
        known = np.where(np.isnan(values), 0.0, values)
        _check_amounts(where, f"seconds of '{kind}'", known, graph.op_names)
    if (graph.colocate < -1).any():
        op = int(np.argmax(graph.colocate < -1))
        raise GraphError(f"{where}: op {op} has colocate {graph.colocate[op]}; use an id >= 0 or null")
    sizes = graph.tensor_bytes
    if len(sizes) != n_tensors or len(graph.consumers) != n_tensors:
        raise GraphError(
            f"{where}: {n_tensors} producers, {len(sizes)} sizes and {len(graph.consumers)} consumer lists"
        )
    bad = ~np.isfinite(sizes) | (sizes < 0)
    if bad.any():
        tensor = int(np.argmax(bad))
        raise GraphError(f"{where}: tensor {tensor} has bytes {sizes[tensor]}; use a finite number >= 0")
    _check_tensors(where, graph)


def _check_amounts(where: str, label: str, values: FloatArray, op_names: Sequence[str]) -> None:
    bad = ~np.isfinite(values) | (values < 0)
    if bad.any():
        op = int(np.argmax(bad))
        raise GraphError(
            f"{where}: op {op} ('{op_names[op]}') has {label} {values[op]}; use a finite number >= 0"
        )


def _check_tensors(where: str, graph: OpGraph) -> None:
    producer, readers = graph.tensor_producer, graph.consumers.items
    owner = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    for label, ops, tensor_of in (
        ("is produced by", producer, np.arange(graph.n_tensors)),
        ("is consumed by", readers, owner),
    ):
        bad = (ops < 0) | (ops >= graph.n_ops)
        if bad.any():
            at = int(np.argmax(bad))
            raise GraphError(
                f"{where}: tensor {tensor_of[at]} {label} op {ops[at]}, but ops are 0 to {graph.n_ops - 1}"
            )
    late = readers <= producer[owner]
    if late.any():
        at = int(np.argmax(late))
        raise GraphError(
            f"{where}: tensor {owner[at]} goes from op {producer[owner[at]]} to op {readers[at]}, "
            "but ops are in program order; sort them topologically (a cycle cannot be sorted)"
        )
    repeat = (np.diff(readers) <= 0) & (np.diff(owner) == 0)
    if repeat.any():
        tensor = int(owner[int(np.argmax(repeat))])
        raise GraphError(f"{where}: the consumers of tensor {tensor} must be ascending and distinct")
    taken = np.flatnonzero(graph.is_source)
    fed = np.intersect1d(readers, taken)
    if len(fed):
        op = int(fed[0])
        raise GraphError(
            f"{where}: op {op} ('{graph.op_names[op]}') is a {graph.op_types[op]} and reads a tensor; "
            "parameters and inputs have no inputs"
        )
