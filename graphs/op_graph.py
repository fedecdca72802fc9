"""The op graph of one training (or inference) step: ops in program order, tensors first class."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import networkx as nx
import numpy as np

from graphs.graph_columns import AMOUNTS, EXTENTS, IMAGE_SIDES, Csr, GraphColumns, GraphError, check_graph
from graphs.op_records import parse_ops
from graphs.system.array_types import BoolArray, IntArray
from graphs.system.errors import shortened
from graphs.system.json_files import FileFormatError


@dataclass(frozen=True, eq=False)
class OpGraph(GraphColumns):
    """Ops in program order (every producer before its consumers) and the tensors between them.

    Strings can be printed, and amounts are within the bounds of `graphs.limits`, so that every graph can be
    written to a file, read back and simulated.

    The columns are those of `GraphColumns`.

    Raises:
        GraphError: on construction, if a rule above is broken.
    """

    def __post_init__(self) -> None:
        unknown: dict[str, Any] = dict.fromkeys(("dtypes", "sources"), ("",) * self.n_ops)
        unknown["shapes"] = (None,) * self.n_ops
        for column, count in (("gemm", EXTENTS), ("image", IMAGE_SIDES)):
            unknown[column] = np.zeros((self.n_ops, count), dtype=np.int64)
        for column, values in unknown.items():
            if not len(getattr(self, column)):
                object.__setattr__(self, column, values)
        check_graph(self)

    def __repr__(self) -> str:
        return f"<OpGraph {shortened(self.name)}: {self.n_ops:,} ops, {self.n_tensors:,} tensors>"

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
        colocated with (of several updates, by one that is colocated with what makes the gradient, else the
        last); on that op's device they take no further memory.
        """
        owner = np.full(self.n_tensors, -1, dtype=np.int64)
        of_parameter = (np.array(self.op_types) == "parameter")[self.tensor_producer]
        owner[of_parameter] = self.tensor_producer[of_parameter]
        reader = self.consumers.items
        is_update = np.array(self.phases) == "optimizer"
        tensor = np.repeat(np.arange(self.n_tensors), np.diff(self.consumers.ptr))
        gradient = is_update[reader] & ~of_parameter[tensor]
        owner[tensor[gradient]] = reader[gradient]
        group = self.colocate[reader]
        together = gradient & (group >= 0) & (group == self.colocate[self.tensor_producer[tensor]])
        owner[tensor[together]] = reader[together]
        return owner

    @cached_property
    def is_compute(self) -> BoolArray:
        """Says whether an order visits the op, bool (n_ops,).

        It never visits an input, a parameter that an op reads or that goes with a compute op, nor an update
        that a colocated compute op decides for. Parameters that no op reads are visited once a unit.
        """
        update = np.array(self.phases) == "optimizer"
        with_compute = np.unique(self.colocate[~self.is_source & ~update])
        decided = np.isin(self.colocate, with_compute) & (self.colocate >= 0)
        compute: BoolArray = ~self.is_source & ~(update & decided)
        compute[self.unread] = compute.any()
        return compute

    @cached_property
    def unread(self) -> IntArray:
        """First op of each unit of parameters that no op reads, which take memory and may go anywhere."""
        label = np.where(self.colocate >= 0, self.n_ops + self.colocate, np.arange(self.n_ops))
        is_used = (
            ~self.is_source | (self._first_reader < self.n_ops) | (np.array(self.op_types) != "parameter")
        )
        unused = np.flatnonzero(~np.isin(label, label[is_used]) & (self.resident_bytes > 0))
        return unused[np.unique(label[unused], return_index=True)[1]]

    @cached_property
    def unit_of(self) -> IntArray:
        """Placement unit of each op, int (n_ops,), numbered from 0 by first op in program order.

        The ops of a unit go on one device: those with the same `colocate`. If none of them is a compute op (a
        stray parameter or input), they join the unit of their first consumer or, where nothing consumes them,
        of the first compute op. So a compute op decides for every unit.
        """
        label = np.where(self.colocate >= 0, self.n_ops + self.colocate, np.arange(self.n_ops))
        compute = np.flatnonzero(self.is_compute)
        strays = np.flatnonzero(~np.isin(label, label[compute]))
        if len(compute) and len(strays):
            _, group = np.unique(label[strays], return_inverse=True)
            # Only sources are strays, so the first reader of a group is never a stray itself.
            leader = np.full(int(group.max()) + 1, self.n_ops)
            np.minimum.at(leader, group, self._first_reader[strays])
            leader = np.where(leader < self.n_ops, leader, compute[0])
            label[strays] = label[leader[group]]
        _, first, unit = np.unique(label, return_index=True, return_inverse=True)
        rank = np.empty(len(first), dtype=np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        return rank[unit]

    @property
    def _first_reader(self) -> IntArray:
        """First op that reads an output of each op, `n_ops` where none does, int (n_ops,)."""
        first = np.full(self.n_ops, self.n_ops)
        np.minimum.at(first, self.edges[:, 0], self.edges[:, 1])
        return first

    @cached_property
    def units(self) -> Csr:
        """Ops of each placement unit, ascending; rows are numbered as in `unit_of`."""
        n_units = int(self.unit_of.max()) + 1 if self.n_ops else 0
        return Csr.from_pairs(self.unit_of, np.arange(self.n_ops), n_units)

    def to_networkx(self) -> nx.MultiDiGraph:
        """Makes a graph of ops by program index; each tensor is an edge with `bytes` to each consumer."""
        view = nx.MultiDiGraph(name=self.name, family=self.family)
        columns = {"name": self.op_names, "type": self.op_types, "phase": self.phases, "module": self.modules}
        columns |= {key: getattr(self, key).tolist() for key in (*AMOUNTS, "colocate")}
        columns["dtype"] = self.dtypes
        for op in range(self.n_ops):
            view.add_node(op, **{key: values[op] for key, values in columns.items()})
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
    ptr = np.cumsum([0, *map(len, rows)], dtype=np.int64)
    return OpGraph(
        name=name,
        family=family,
        tensor_producer=np.array([producer for producer, _, _ in tensors], dtype=np.int64),
        tensor_bytes=np.array([size for _, size, _ in tensors], dtype=np.float64),
        consumers=Csr(ptr, np.concatenate([*rows, np.zeros(0, dtype=np.int64)])),
        **columns,
    )
