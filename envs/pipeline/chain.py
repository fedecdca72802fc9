"""The chain of a graph: its forward ops in program order, in the pieces between which stages can be cut.

A cut is possible where no placement unit has forward ops on both sides. Each op has a position in the chain:

    forward op f            pos(f) = forward ops before f
    parameter or input s    pos(s) = min pos(f) over forward ops f of its unit; else over those that read s
    backward op b           pos(b) = max need(c) over b and the backward ops c after it, in program order
    update u                pos(u) = max pos(m) over the ops m that u reads

`need(c)` is the greatest position of the forward ops, parameters and inputs that `c` reads, and of those in
the units of updates that read `c`. Where `c` reads a tied parameter or makes its gradient, the forward op of
its module that reads the parameter counts too. Positions of backward ops fall, as backward passes run through
the layers in reverse. Where there is nothing to take a minimum or maximum of, the position is 0.

An op is in the piece at its position. A unit that is in several is in the last of those of its forward ops;
without forward ops, in the last of its backward ops; else in the last of all.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.pipeline import PipelineError
from envs.pipeline.stages import Stages, phases_of
from envs.pipeline.tied import ties_of
from envs.placements.placement import spread_unread
from envs.problem import Problem
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.errors import shortened
from graphs.system.jit import kernel


class Cuts(NamedTuple):
    """A placement of a pipeline, as placers see it.

    Attributes:
        first: first piece of each stage, ascending from 0.
        ranks: devices in the order of their first stage; stage `s` is on `ranks[s % len(ranks)]`.
        recomputed: stages that run forward again before their backward actions; empty = none.
    """

    first: tuple[int, ...]
    ranks: tuple[int, ...]
    recomputed: tuple[bool, ...] = ()


@dataclass(frozen=True, eq=False)
class Chain:
    """The pieces of a graph.

    Attributes:
        piece_of: piece of each op, int64 (n_ops,).
        n_pieces: number of pieces.
    """

    problem: Problem
    piece_of: IntArray
    n_pieces: int

    @cached_property
    def seconds(self) -> FloatArray:
        """Forward, backward and update seconds of each piece on each device, (3, n_pieces, n_devices)."""
        phase = phases_of(self.problem.graph)
        totals_s = np.zeros((3, self.n_pieces, self.problem.n_devices))
        runs = phase >= 0
        np.add.at(totals_s, (phase[runs], self.piece_of[runs]), self.problem.op_seconds[runs])
        return totals_s

    @cached_property
    def seconds_before(self) -> FloatArray:
        """Forward and backward seconds of the first 0, 1, ... pieces, (n_devices, n_pieces + 1)."""
        totals_s = np.zeros((self.problem.n_devices, self.n_pieces + 1))
        self.seconds[:2].sum(axis=0).T.cumsum(axis=1, out=totals_s[:, 1:])
        return totals_s

    @cached_property
    def resident_bytes(self) -> FloatArray:
        """Bytes that each piece holds for the whole step, (n_pieces,)."""
        held = np.bincount(self.piece_of, self.problem.graph.resident_bytes, self.n_pieces)
        return held.astype(np.float64)

    @cached_property
    def cut_bytes(self) -> FloatArray:
        """Bytes that the forward and the backward pass send over the cut before each piece, (2, n_pieces).

        Forward, tensors pass the cut before piece `k` if a piece below `k` makes them and one from `k` on
        reads them; backward, the other way round. Each counts once, however many pieces read it.
        """
        graph = self.problem.graph
        phase, piece = phases_of(graph), self.piece_of
        tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
        maker, reader = graph.tensor_producer[tensor], graph.consumers.items
        passes = (phase[maker] >= 0) & (phase[reader] != 2)
        changes = np.zeros((2, self.n_pieces + 1))
        for direction in (0, 1):
            ends = (piece[maker], piece[reader])[:: 1 - 2 * direction]
            moves = passes & (ends[0] < ends[1])
            reach = np.full(graph.n_tensors, -1 if not direction else self.n_pieces)
            if direction:
                np.minimum.at(reach, tensor[moves], piece[reader[moves]])
            else:
                np.maximum.at(reach, tensor[moves], piece[reader[moves]])
            sent = np.unique(tensor[moves])
            home, size = piece[graph.tensor_producer[sent]], graph.tensor_bytes[sent]
            low, high = (reach[sent], home) if direction else (home, reach[sent])
            np.add.at(changes[direction], low + 1, size)
            np.subtract.at(changes[direction], high + 1, size)
        return changes.cumsum(axis=1)[:, :-1]

    def stages(
        self,
        first: IntArray,
        devices: IntArray,
        recomputed: tuple[int, ...] = (),
        groups: tuple[tuple[int, ...], ...] = (),
    ) -> Stages:
        """Cuts the chain into stages.

        Args:
            first: first piece of each stage, ascending from 0, int64 (n_stages,).
            devices, recomputed, groups: see `Stages`.
        """
        begins = np.zeros(self.n_pieces, dtype=np.int64)
        begins[first[1:]] = 1
        stage_of = begins.cumsum()[self.piece_of]
        placed = np.where(self._in_stage, stage_of, -1)
        graph, cluster, device_of = self.problem.graph, self.problem.cluster, devices.take(stage_of)
        if len(graph.unread):
            kept_bytes = np.bincount(device_of, graph.resident_bytes, cluster.n_devices).astype(np.float64)
            if groups:
                kept_bytes[np.setdiff1d(np.arange(cluster.n_devices), groups[0])] = np.inf
            device_of = spread_unread(graph, cluster, device_of, kept_bytes)
        return Stages(device_of, placed, devices, recomputed, groups)

    @cached_property
    def _in_stage(self) -> NDArray[np.bool_]:
        """Says which ops are forward and backward ops, bool (n_ops,)."""
        return np.isin(phases_of(self.problem.graph), (0, 1))


def chain_of(problem: Problem) -> Chain:
    """Finds the pieces of a graph, as many as can be.

    Raises:
        PipelineError: it has no forward ops.
    """
    graph = problem.graph
    phase = phases_of(graph)
    forward = np.flatnonzero(phase == 0)
    if not len(forward):
        raise PipelineError(f"graph '{shortened(graph.name)}' has no forward ops; a pipeline needs some")
    position = np.full(graph.n_ops, -1, dtype=np.int64)
    position[forward] = np.arange(len(forward))
    piece_of_position = _pieces(graph, position, forward)
    _place_sources(graph, position)
    _place_backward(graph, position, phase)
    for op in np.flatnonzero(phase == 2).tolist():
        position[op] = position[graph.predecessors.row(op)].max(initial=0)
    piece = _together(graph, piece_of_position[np.maximum(position, 0)], phase)
    return Chain(problem, piece, int(piece_of_position[-1]) + 1)


def _pieces(graph: OpGraph, position: IntArray, forward: IntArray) -> IntArray:
    """Returns the piece of each position, int64 (n_forward,)."""
    unit = graph.unit_of[forward]
    n_units = len(graph.units)
    low, high = np.full(n_units, len(forward)), np.full(n_units, -1)
    np.minimum.at(low, unit, position[forward])
    np.maximum.at(high, unit, position[forward])
    spans = np.zeros(len(forward) + 1, dtype=np.int64)
    there = high >= 0
    np.add.at(spans, low[there] + 1, 1)
    np.subtract.at(spans, high[there] + 1, 1)
    can_cut = spans.cumsum()[:-1] == 0
    can_cut[0] = False
    return can_cut.cumsum()


def _place_sources(graph: OpGraph, position: IntArray) -> None:
    """Sets `pos(s)` of parameters and inputs."""
    of_unit = np.full(len(graph.units), graph.n_ops, dtype=np.int64)
    forward = np.flatnonzero(position >= 0)
    np.minimum.at(of_unit, graph.unit_of[forward], position[forward])
    first = np.full(graph.n_ops, graph.n_ops, dtype=np.int64)
    reads = position[graph.edges[:, 1]] >= 0
    np.minimum.at(first, graph.edges[reads, 0], position[graph.edges[reads, 1]])
    sources = np.flatnonzero(graph.is_source)
    wanted = np.where(
        of_unit[graph.unit_of[sources]] < graph.n_ops, of_unit[graph.unit_of[sources]], first[sources]
    )
    position[sources] = np.where(wanted < graph.n_ops, wanted, 0)


def _place_backward(graph: OpGraph, position: IntArray, phase: IntArray) -> None:
    """Sets `pos(b)` of backward ops."""
    needs = np.full(graph.n_ops, -1, dtype=np.int64)
    maker, reader = graph.edges.T
    placed_maker = position[maker] >= 0
    np.maximum.at(needs, reader[placed_maker], position[maker[placed_maker]])
    of_unit = np.full(len(graph.units), -1, dtype=np.int64)
    placed = np.flatnonzero(position >= 0)
    np.maximum.at(of_unit, graph.unit_of[placed], position[placed])
    updates = phase[reader] == 2
    np.maximum.at(needs, maker[updates], of_unit[graph.unit_of[reader[updates]]])
    for tie in ties_of(graph):
        for op in tie.backward:
            of_module = [
                reader_op for reader_op in tie.forward if graph.modules[reader_op] == graph.modules[op]
            ]
            needs[op] = max(needs[op], position[of_module[0]] if len(of_module) == 1 else -1)
    backward = np.flatnonzero(phase == 1)
    latest = np.maximum.accumulate(needs[backward][::-1])[::-1]
    position[backward] = np.maximum(latest, 0)


def _together(graph: OpGraph, piece: IntArray, phase: IntArray) -> IntArray:
    """Returns the piece of each op, the same for all of a placement unit, int64 (n_ops,)."""
    chosen = np.full(len(graph.units), -1, dtype=np.int64)
    for wanted in (phase == 0, phase == 1, phase >= -1):
        open_units = chosen < 0
        of_unit = np.full(len(graph.units), -1, dtype=np.int64)
        np.maximum.at(of_unit, graph.unit_of[wanted], piece[wanted])
        chosen = np.where(open_units, of_unit, chosen)
    return chosen[graph.unit_of]


ROUNDS = 60
"""Halvings of the interval in which the least load lies; after that many it is a rounding error wide."""


@kernel(entry=True)
def cut_by_load(before, first):
    """Finds the cuts whose greatest load of a stage is least; each stage has at least one piece.

    The least load is found by bisection: each stage in turn takes as many pieces as it can within a load.

    Args:
        before: load of all pieces before each one, and of all, for each stage, (n_stages, n_pieces + 1).
        first: first piece of each stage, int64 (n_stages,); written.
    """
    n_stages, n_pieces = before.shape[0], before.shape[1] - 1
    low, high = 0.0, 0.0
    for stage in range(n_stages):
        high = max(high, before[stage, n_pieces])
    for _ in range(ROUNDS):
        load = (low + high) / 2
        if fill(before, load, first) >= n_pieces:
            high = load
        else:
            low = load
    fill(before, high, first)
    for stage in range(n_stages - 1, 0, -1):
        first[stage] = min(first[stage], n_pieces - (n_stages - stage))
    for stage in range(1, n_stages):
        first[stage] = max(first[stage], first[stage - 1] + 1)


@kernel
def fill(before, load, first):
    """Gives each stage in turn all the pieces that it can take within a load.

    Args:
        before: see `cut_by_load`.
        load: seconds.
        first: first piece of each stage, int64 (n_stages,); written.

    Returns:
        End of the last stage.
    """
    piece = 0
    for stage in range(before.shape[0]):
        first[stage] = piece
        row = before[stage]
        piece = np.searchsorted(row, row[piece] + load * (1 + 1e-12), side="right") - 1
    return piece
