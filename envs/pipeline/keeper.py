"""The parts of devices, kept by all that they depend on: a move of a search changes few of them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.pipeline.arrays import Parts, PipelineArrays
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs.system.array_types import IntArray

N_KEPT = 8
"""Ops that are kept at first, in multiples of those of the graph."""
LEAST_PLACES = 262_144


class Keeper:
    """The parts of a problem's devices in the steps that were simulated.

    Attributes:
        parts: `Parts`; the kernels add to them.
    """

    def __init__(self, problem: Problem, arrays: PipelineArrays) -> None:
        self._graph = problem.graph
        times = np.vstack([problem.op_seconds, arrays.accumulate_s]).T
        kinds: dict[bytes, int] = {}
        self._kind_of = [kinds.setdefault(each.tobytes(), len(kinds)) for each in times]
        self._known: dict[tuple[object, ...], int] = {}
        self._make(max(LEAST_PLACES, N_KEPT * problem.graph.n_ops))

    def _make(self, n_places: int) -> None:
        self.parts = new_parts(n_places, 2 * self._graph.n_ops, 2 * self._graph.n_tensors)

    def part_of(self, stages: Stages, splits: Sequence[bool]) -> IntArray:
        """Finds the part of each device, int64 (n_devices,); those not made yet have the next numbers.

        Args:
            splits: whether each stage computes gradients of weights in actions of their own.
        """
        if not stages.pieces:
            self._forget()
        own: list[list[tuple[object, ...]]] = [[] for _ in self._kind_of]
        for stage, device in enumerate(stages.devices.tolist()):
            taken = stages.pieces[stage] if stages.pieces else stage
            own[device].append((taken, stage in stages.recomputed, splits[stage]))
        keys = [(kind, *taken) for kind, taken in zip(self._kind_of, own, strict=True)]
        return np.array([self._known.setdefault(key, len(self._known)) for key in keys], dtype=np.int64)

    def make_room(self, part_of: IntArray) -> None:
        """Forgets all parts, which have no room for those of a step; makes room if there are no others."""
        if len(np.unique(part_of)) == len(self._known):
            self._make(2 * len(self.parts.code))
        self._forget()

    def _forget(self) -> None:
        self._known.clear()
        self.parts.n[0] = 0
        for scratch in (self.parts.place_of, self.parts.readers, self.parts.marks):
            scratch[:] = -1


def new_parts(n: int, n_ops: int, n_tensors: int) -> Parts:
    """Makes `Parts` without any.

    Args:
        n: places, and steps, rows and slots, at most.
        n_ops, n_tensors: of the graph, second runs included.
    """
    return Parts(
        n=np.zeros(1, np.int64),
        begin=np.zeros((n + 1, 3), np.int64),
        op_ptr=np.zeros(n + 1, np.int64),
        step_ptr=np.zeros(n + 1, np.int64),
        op=np.empty(n, np.int32),
        list_of=np.empty(n, np.int32),
        code=np.empty(n, np.int8),
        number=np.empty(n, np.int32),
        reader=np.empty(n, np.int32),
        issued=np.empty((n, 2), np.int32),
        seconds=np.empty((n, 2)),
        rest_s=np.empty((n, 2)),
        issue_s=np.empty((n, 2)),
        row_wire=np.empty(n, np.int32),
        slot_wire=np.empty(n, np.int32),
        held=np.empty(n),
        last=np.empty(n, np.int32),
        update=np.empty(n, np.int32),
        taken=np.empty(n),
        freed=np.empty((4, n)),
        kept=np.empty(n),
        later=np.empty((4, n)),
        left_s=np.empty(n),
        varies=np.empty(n, np.int8),
        added=np.empty((n, 4)),
        place_of=np.full(n_ops, -1, np.int32),
        readers=np.full((2, n_tensors), -1, np.int32),
        marks=np.full((3, 2 * n_tensors), -1, np.int32),
    )
