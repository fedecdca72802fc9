"""Tied tensors in a pipeline: parameters that forward ops on several devices read, one copy on each device.

Each device adds up the gradients of its own microbatches. After the last one, every device gets the sums of
the others, adds them, and updates its copy; so the additions are optimizer ops with a copy on each device.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np

from envs.pipeline.stages import PHASES, Stages, phases_of
from graphs.graph_columns import Csr
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray

COPY = ".tied"
"""Ending of the names of copies, from the third one on with a number."""
TUPLES = ("op_types", "modules", "phases", "dtypes", "sources", "shapes")
ARRAYS = ("flops", "bytes_moved", "resident_bytes", "colocate", "gemm", "image")


class Tie(NamedTuple):
    """A parameter that forward ops of several modules read, and its update."""

    parameter: int
    update: int
    adds: tuple[int, ...]  # backward ops that add parts of the gradient
    forward: tuple[int, ...]  # forward ops that read the parameter
    backward: tuple[int, ...]  # backward ops that read it or make parts of its gradient

    @property
    def ops(self) -> tuple[int, ...]:
        """Ops whose devices decide on copies."""
        return (self.parameter, *self.adds, *self.forward, *self.backward)


class Copies(NamedTuple):
    """The copies of a tie under a placement."""

    devices: tuple[int, ...]  # of the copies, the original first
    ops: tuple[int, ...]  # parameter, additions of sums of several devices, update
    sums: tuple[int, ...]  # op that makes the sum of the gradients of each device


class CopiedGraph(NamedTuple):
    """A graph with copies under a placement."""

    graph: OpGraph
    original: IntArray  # (n_ops,) op that each op is, or is a copy of
    copies: tuple[IntArray, ...]  # of each tie (n_ops of the tie, n_devices), ops of the graph
    devices: tuple[tuple[int, ...], ...]  # of each tie, those of its copies

    def stages(self, stages: Stages) -> Stages:
        """Places the copies on their devices, and all other ops as before."""
        device_of, stage_of = stages.device_of[self.original], stages.stage_of[self.original]
        for ops, devices in zip(self.copies, self.devices, strict=True):
            device_of[ops], stage_of[ops] = devices, -1
        return replace(stages, device_of=device_of, stage_of=stage_of)


def ties_of(graph: OpGraph) -> tuple[Tie, ...]:
    """Finds the parameters that forward ops of several modules read and that one colocated update changes."""
    phase, ties = phases_of(graph), []
    for update in np.flatnonzero(phase == PHASES.index("optimizer")).tolist():
        unit = graph.units.row(graph.unit_of[update]).tolist()
        parameters = [op for op in unit if graph.op_types[op] == "parameter"]
        if len(parameters) > 1:
            name = graph.op_names[update]
            parameters = [op for op in parameters if name.endswith(f"/{graph.op_names[op]}")]
        if len(parameters) == 1 and not len(graph.successors.row(update)):
            readers = graph.successors.row(parameters[0]).tolist()
            forward = tuple(op for op in readers if graph.phases[op] == "forward")
            if len({graph.modules[op] for op in forward}) > 1:
                adds = _additions(graph, phase, update)
                makers = (op for add in (*adds, update) for op in graph.predecessors.row(add).tolist())
                backward = sorted(
                    op for op in {*readers, *makers} - {*adds} if graph.phases[op] == "backward"
                )
                ties.append(Tie(parameters[0], update, adds, forward, tuple(backward)))
    return tuple(ties)


def _additions(graph: OpGraph, phase: IntArray, update: int) -> tuple[int, ...]:
    """Lists the backward ops that only add parts of the gradient of an update, in program order."""
    adds, below = set[int](), [update]
    while below:
        for op in graph.predecessors.row(below.pop()).tolist():
            makers = graph.predecessors.row(op)
            is_sum = graph.op_types[op].startswith("aten.add") and len(makers) == 2
            is_sum &= bool((phase[[op, *makers]] == PHASES.index("backward")).all())
            if is_sum and set(graph.successors.row(op).tolist()) <= {update, *adds}:
                adds.add(op)
                below.append(op)
    return tuple(sorted(adds))


def copies_of(graph: OpGraph, tie: Tie, device_of: IntArray) -> Copies | None:
    """Finds the copies of a tie; None if its ops are on one device, or a device has no one sum of gradients.

    Args:
        device_of: device of each op, int64 (n_ops,).
    """
    devices = tuple(dict.fromkeys(device_of[[tie.parameter, *tie.forward]].tolist()))
    if len(devices) == 1:
        return None
    origin: dict[int, set[int]] = {}
    for add in tie.adds:
        makers = graph.predecessors.row(add).tolist()
        origin[add] = set().union(*(origin.get(op, {int(device_of[op])}) for op in makers))
    mixed = [op for op, devices_of in origin.items() if len(devices_of) > 1]
    read = [op for reader in (*mixed, tie.update) for op in graph.predecessors.row(reader).tolist()]
    parts = [op for op in read if op not in mixed and graph.phases[op] == "backward"]
    sums = {int(device_of[op]): op for op in parts}
    if len(parts) != len(devices) or set(sums) != set(devices):
        return None
    ops = (tie.parameter, *mixed, tie.update)
    return Copies(devices, ops, tuple(sums[device] for device in devices))


def split(graph: OpGraph, ties: Sequence[Copies], device_of: IntArray) -> CopiedGraph:
    """Adds the copies of ties to a graph, each behind its original.

    Args:
        device_of: device of each op, int64 (n_ops,).
    """
    counts = np.ones(graph.n_ops, dtype=np.int64)
    for tie in ties:
        counts[list(tie.ops)] = len(tie.devices)
    original, number, first = _numbered(counts)
    tensor, tensor_number, first_tensor = _numbered(counts[graph.tensor_producer])
    pair, copy, _ = _numbered(counts[graph.consumers.items])
    reader = graph.consumers.items[pair]
    read = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))[pair]
    read_number = np.minimum(copy, counts[graph.tensor_producer[read]] - 1)
    ends = ["", COPY, *(f"{COPY}{repeat}" for repeat in range(2, int(counts.max())))]
    names = (graph.op_names[op] + ends[n] for op, n in zip(original.tolist(), number.tolist(), strict=True))
    columns: dict[str, Any] = {name: getattr(graph, name)[original] for name in ARRAYS}
    columns |= {name: tuple(getattr(graph, name)[op] for op in original.tolist()) for name in TUPLES}
    new_group = int(graph.colocate.max()) + 1
    for tie in ties:
        is_weight = (graph.tensor_producer[read] == tie.ops[0]) & (counts[reader] == 1)
        for index, device in enumerate(tie.devices):
            read_number[is_weight & (device_of[reader] == device)] = index
            group = new_group if index else graph.colocate[tie.ops[0]]
            columns["colocate"][[*(first[list(tie.ops)] + index), first[tie.sums[index]]]] = group
            new_group += index > 0
    mixed = np.isin(original, [op for tie in ties for op in tie.ops[1:-1]])
    columns["phases"] = tuple(np.where(mixed, "optimizer", columns["phases"]).tolist())
    by_reader = np.argsort(first[reader] + copy, kind="stable")
    rows = (first_tensor[read] + read_number)[by_reader], (first[reader] + copy)[by_reader]
    graph = replace(
        graph,
        **columns,
        op_names=tuple(names),
        seconds={kind: seconds[original] for kind, seconds in graph.seconds.items()},
        tensor_producer=first[graph.tensor_producer[tensor]] + tensor_number,
        tensor_bytes=graph.tensor_bytes[tensor],
        consumers=Csr.from_pairs(*rows, len(tensor)),
    )
    copies = tuple(first[list(tie.ops)][:, None] + np.arange(len(tie.devices)) for tie in ties)
    return CopiedGraph(graph, original, copies, tuple(tie.devices for tie in ties))


def _numbered(counts: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Repeats each index so many times; returns them, the number of each repetition, and each first place."""
    first = np.cumsum(counts) - counts
    index = np.repeat(np.arange(len(counts)), counts)
    return index, np.arange(len(index)) - first[index], first
