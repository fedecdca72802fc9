"""A problem by kinds of devices: what ops, transfers and units cost on each."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np

from agent.bounds.path_kernels import before_and_after, longest_path
from envs.problem import Problem, kinds
from graphs.limits import ROUNDING
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

MAX_SPLITS = 32
"""Ops of the critical path at which the step is split in two."""


class Reads(NamedTuple):
    """Pairs of a tensor and an op that reads it; sizes are not 0."""

    tensor: IntArray  # (n_reads,)
    producer: IntArray  # op, (n_reads,)
    reader: IntArray  # op, (n_reads,)
    size: FloatArray  # bytes, (n_reads,)


@dataclass(frozen=True, eq=False)
class KindCosts:
    """A problem by kinds of devices; those of a kind have equal memory and take equally long for every op.

    Attributes:
        kind_of: kind of each device, int (n_devices,).
        seconds: of each op on each kind, (n_ops, n_kinds).
        memory: bytes of one device of each kind, (n_kinds,).
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """

    problem: Problem
    kind_of: IntArray
    seconds: FloatArray
    memory: FloatArray
    head: FloatArray
    tail: FloatArray

    @property
    def graph(self) -> OpGraph:
        """The graph of the problem."""
        return self.problem.graph

    @property
    def n_kinds(self) -> int:
        """The number of kinds."""
        return len(self.memory)

    @property
    def last_gap_s(self) -> float:
        """Seconds that the rest after the last op of a device is at most; sums of rests are rounded."""
        return self.problem.cluster.op_gap_s * (1 + ROUNDING)

    @cached_property
    def n_devices(self) -> IntArray:
        """The number of devices of each kind, int (n_kinds,)."""
        return np.bincount(self.kind_of)

    @cached_property
    def resident(self) -> FloatArray:
        """Resident bytes of each unit, (n_units,)."""
        return self.per_unit(self.graph.resident_bytes[:, None])[:, 0]

    @cached_property
    def load(self) -> FloatArray:
        """Seconds that each op occupies a kind's devices, over their number, (n_ops, n_kinds)."""
        occupied: FloatArray = np.where(self.seconds > 0, self.seconds + self.problem.cluster.op_gap_s, 0.0)
        return occupied / self.n_devices

    @cached_property
    def critical_path(self) -> IntArray:
        """Ops of the longest path where each op is on its fastest kind, int (n,)."""
        path: IntArray = longest_path(self.graph.edges, self.seconds.min(axis=1))
        return path

    @cached_property
    def splits(self) -> tuple[IntArray, FloatArray, FloatArray]:
        """Ops of the critical path, int (n_splits,), and their ancestors and descendants.

        The latter are 0 or 1, (n_splits, n_ops) each.
        """
        path = self.critical_path
        chosen = path[np.unique(np.linspace(0, len(path) - 1, MAX_SPLITS).astype(np.int64))]
        return chosen, *before_and_after(self.graph.edges, chosen, self.graph.n_ops)

    @cached_property
    def reads(self) -> Reads:
        """All reads of tensors with bytes, those of a tensor together."""
        graph = self.graph
        tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
        has_bytes = graph.tensor_bytes[tensor] > 0
        tensor = tensor[has_bytes]
        reader = graph.consumers.items[has_bytes]
        return Reads(tensor, graph.tensor_producer[tensor], reader, graph.tensor_bytes[tensor])

    @cached_property
    def links(self) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Most bytes a second, least half-bandwidth bytes and least latency seconds from kind to kind.

        (n_kinds, n_kinds) each, senders in rows. The diagonals make transfers free.
        """
        cluster, shape = self.problem.cluster, (self.n_kinds, self.n_kinds)
        rate, n_half, latency_s = np.zeros(shape), np.full(shape, np.inf), np.full(shape, np.inf)
        pair = self.kind_of[:, None], self.kind_of[None, :]
        np.maximum.at(rate, pair, cluster.bytes_per_s)
        np.minimum.at(n_half, pair, cluster.n_half_matrix)
        np.minimum.at(latency_s, pair, cluster.latency_s)
        same = np.eye(self.n_kinds, dtype=bool)
        return np.where(same, np.inf, rate), np.where(same, 0.0, n_half), np.where(same, 0.0, latency_s)

    def sent_s(self, size: FloatArray) -> FloatArray:
        """Least seconds that transfers occupy a link from kind to kind, (n, n_kinds, n_kinds)."""
        rate, n_half, _ = self.links
        seconds: FloatArray = (size[:, None, None] + n_half) / rate
        return seconds

    def per_unit(self, values: FloatArray) -> FloatArray:
        """Sums of the ops of each unit, (n_units, n_columns), from those of the ops, (n_ops, n_columns)."""
        n_units = len(self.graph.units)
        columns = [np.bincount(self.graph.unit_of, column, n_units) for column in values.T]
        return np.stack(columns, axis=1)

    def only(self, kind: int, values: FloatArray) -> FloatArray:
        """Sums of the ops of each unit on one kind, 0 on the others, (n_units, n_kinds)."""
        return self.per_unit(np.where(np.arange(self.n_kinds) == kind, values, 0.0))


def kind_costs(problem: Problem, head: FloatArray, tail: FloatArray) -> KindCosts:
    """Groups the devices of a problem by kind.

    Args:
        head, tail: least seconds before the start and after the end of each op, (n_ops,).
    """
    chosen, kind_of = kinds(np.vstack([problem.op_seconds, problem.cluster.memory_bytes]))
    memory = problem.cluster.memory_bytes[chosen]
    return KindCosts(problem, kind_of, problem.op_seconds[:, chosen], memory, head, tail)
