"""The arrays of pipelined steps: what the kernels read, the programs of actions, and the clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.costs.op_seconds import op_seconds
from envs.pipeline.schedules import KINDS
from envs.pipeline.stages import Stages, phases_of
from envs.problem import Problem
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import FloatArray, IntArray

N_KINDS = len(KINDS)
BACKWARD_PHASE, OPTIMIZER_PHASE, RECOMPUTED_PHASE = range(1, 4)
"""Values of `PipelineArrays.phase` that kernels compare with; the last is that of second runs."""
UNSET = -1.0
"""A time that is not known yet."""

RUN, SEND, RECEIVE, RECEIVE_ONCE = range(4)
"""Steps of a program: run ops; note when a tensor is ready to be sent; wait for a tensor from another device.
`Links` tells apart tensors that all microbatches share."""

FIRST, LATER = range(2)
"""Columns of `Parts` and `Agenda`: the first microbatch and all others."""
LISTS, ROWS, SLOTS = range(3)
"""Columns of `Parts.begin`."""


class PipelineArrays(NamedTuple):
    """The arrays of a pipelined step besides `ProblemArrays`."""

    phase: IntArray  # (n_ops,) 0 forward, -1 parameters and inputs, or one of the constants above
    is_parameter: IntArray  # (n_ops,) 1 = there is one of it for all microbatches
    is_gradient: (
        IntArray  # (n_tensors,) 1 = summed over microbatches: a backward op makes it for an optimizer op
    )
    accumulate_s: FloatArray  # (n_tensors, n_devices) seconds to add a gradient to the sum
    near: (
        IntArray  # (n_ops, 2) first and last piece of an op and those next to it; first -1 = makes gradients
    )


class PlacedStages(NamedTuple):
    """The stages of a placed graph."""

    device_of: IntArray  # (n_first_ops,)
    stage_of: IntArray  # (n_first_ops,) of forward and backward ops
    device: IntArray  # (n_stages,)
    recomputed: IntArray  # (n_stages,) 1 = its forward ops run again before each backward action
    pieces: IntArray  # (n_stages, 2) its first piece of the chain, and that of the next one; 0, 0 = not known


class SecondRuns(NamedTuple):
    """The second runs of forward ops, which are ops of their own behind all others; empty = none."""

    first: IntArray  # (n_ops,) first run of an op; the op itself for all others
    op: IntArray  # (n_first_ops,) second run of an op, -1 = none
    tensor: IntArray  # (n_first_tensors,) second tensor of a tensor, -1 = none


class Parts(NamedTuple):
    """Parts of steps, kept for other steps: a part is all that one device runs.

    A part depends on the ops of its stages and on their seconds there; on nothing else.
    `envs.pipeline.layout` says which lists of ops it has, each with a program. Ops that run one after the
    other without a wait between are one step of it.
    `RUN` has two columns, as the first microbatch adds no gradients: `FIRST` and `LATER`.

    What goes to other devices is a wire: `2 * tensor`, or `2 * tensor + 1` for its sum over microbatches.
    A part numbers the wires that it sends, its rows, and those that it receives, its slots.

    Its ledger says what its ops begin and end to hold in each microbatch, and is made when it is asked for.
    """

    n: IntArray  # (1,) parts that there are
    begin: IntArray  # (n_parts + 1, 3) first list, row and slot of a part
    op_ptr: IntArray  # (n_lists + 1,) first place of a list
    step_ptr: IntArray  # (n_lists + 1,) first step of its program
    op: NDArray[np.int32]  # (n_places,)
    list_of: NDArray[np.int32]  # (n_places,)
    code: NDArray[np.int8]  # (n_steps,) one of the constants above
    number: NDArray[np.int32]  # (n_steps,) row of `SEND`, slot of `RECEIVE`, from 0 in each part
    reader: NDArray[np.int32]  # (n_steps,) place of the op for which to `RECEIVE`
    issued: NDArray[np.int32]  # (n_steps, 2) ops that `RUN` issues
    seconds: FloatArray  # (n_steps, 2) ops and gaps of `RUN`
    rest_s: FloatArray  # (n_steps, 2) rest of the device after the last op of `RUN`, or before `SEND`
    issue_s: FloatArray  # (n_steps, 2) least seconds from the host's clock to the end of `RUN`
    row_wire: NDArray[np.int32]  # (n_rows,)
    slot_wire: NDArray[np.int32]  # (n_slots,)
    held: FloatArray  # (n_parts,) bytes held from the start; NaN = there is no ledger yet
    last: NDArray[np.int32]  # (n_rows,) place of the last op of the part that needs the tensor, -1 = none
    update: NDArray[np.int32]  # (n_rows,) place of the last update of the part that reads it too, -1 = none
    taken: FloatArray  # (n_places,) bytes that begin to be held at the start of an op
    freed: FloatArray  # (4, n_places) bytes held until its end; rows: see `envs.pipeline.ledger`
    kept: FloatArray  # (n_places,) bytes of these that may be held longer, as others read them
    later: FloatArray  # (4, n_places) most bytes that its list adds from its start on
    left_s: FloatArray  # (n_places,) least seconds from its start to the end of its list
    varies: NDArray[np.int8]  # (n_lists,) 0 = all four rows of its ops are as the first one
    added: FloatArray  # (n_lists, 4) bytes that a list adds; NaN = `later` is not known yet
    place_of: NDArray[np.int32]  # (n_ops,) scratch: place of an op in the part at hand
    readers: NDArray[np.int32]  # (2, n_tensors) scratch: place of the last reader, and of the last update
    marks: NDArray[np.int32]  # (3, n_wires) scratch: row, slot, and the last list that waits for it


class Links(NamedTuple):
    """The programs of all actions of a step, and the tensors that go from device to device.

    Action `stage * N_KINDS + kind` is that of a stage, and the updates of device `d` are action
    `n_stages * N_KINDS + d`. A device has the slots of its part, from `slot[device]` on.
    """

    part_of: IntArray  # (n_devices,)
    list_of: IntArray  # (n_actions,) list of `Parts`
    row: IntArray  # (n_devices,) first row of the stages of a device
    slot: IntArray  # (n_devices,)
    row_of: NDArray[np.int32]  # (n_wires,) row of a wire, -1 = no other device reads it
    wire: NDArray[np.int32]  # (n_rows,)
    row_from: NDArray[np.int32]  # (n_slots,) row that is received
    source: NDArray[np.int32]  # (n_slots,) device that it comes from
    code: NDArray[np.int8]  # (n_slots,) how it is received, one of the constants above
    seconds: FloatArray  # (n_slots,) of the transfer from that device


class Tables(NamedTuple):
    """Times at which tensors are made and sent, seconds, or `UNSET`; a column for each microbatch.

    Sums of gradients have the last column, parameters the first.
    """

    ready_s: FloatArray  # (n_rows, n_microbatches) made
    sent_s: FloatArray  # (n_slots, n_microbatches) end of the copy
    arrival_s: FloatArray  # (n_slots, n_microbatches)
    free_s: FloatArray  # (n_entries,) when the device was free for an entry of the agenda
    host_s: FloatArray  # (n_entries,) when its host thread was
    issuer: NDArray[np.int32]  # (n_slots, n_microbatches) entry that issued the copy, where that takes time


class Agenda(NamedTuple):
    """The actions of each device in its order, the updates last."""

    ptr: IntArray  # (n_devices + 1,) entries of a device
    action: IntArray  # (n_entries,)
    microbatch: IntArray  # (n_entries,)
    column: IntArray  # (n_entries,) `FIRST` where the device adds no gradients yet, else `LATER`
    start_s: FloatArray  # (n_entries,) start of the first op; written
    end_s: FloatArray  # (n_entries,) end of the last op; written


def pipeline_arrays(problem: Problem, piece_of: IntArray) -> PipelineArrays:
    """Makes the arrays of a problem.

    Args:
        piece_of: piece of each op, int64 (n_ops,).
    """
    graph = problem.graph
    phase = phases_of(graph)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    for_optimizer = np.zeros(graph.n_tensors, dtype=bool)
    for_optimizer[tensor[phase[graph.consumers.items] == 2]] = True
    is_gradient = for_optimizer & (phase[graph.tensor_producer] == 1)
    is_parameter = np.array([kind == "parameter" for kind in graph.op_types])
    return PipelineArrays(
        phase=phase,
        is_parameter=is_parameter.astype(np.int64),
        is_gradient=is_gradient.astype(np.int64),
        accumulate_s=_accumulate_s(problem, np.flatnonzero(is_gradient)),
        near=_near(graph, piece_of, is_gradient),
    )


def placed_arrays(stages: Stages) -> PlacedStages:
    """Makes the arrays of stages."""
    recomputed = np.zeros(len(stages.devices), dtype=np.int64)
    recomputed[list(stages.recomputed)] = 1
    pieces = [(taken.start, taken.stop) for taken in stages.pieces] or [(0, 0)] * len(recomputed)
    return PlacedStages(
        stages.device_of, stages.stage_of, stages.devices, recomputed, np.array(pieces, dtype=np.int64)
    )


def _near(graph: OpGraph, piece_of: IntArray, is_gradient: NDArray[np.bool_]) -> IntArray:
    found = np.stack([piece_of, piece_of], axis=1)
    for one, other in (graph.edges.T, graph.edges.T[::-1]):
        np.minimum.at(found[:, 0], one, piece_of[other])
        np.maximum.at(found[:, 1], one, piece_of[other])
    found[graph.tensor_producer[is_gradient], 0] = -1
    return found


def _accumulate_s(problem: Problem, gradients: IntArray) -> FloatArray:
    """Times the addition of each gradient to its sum as an elementwise op, (n_tensors, n_devices)."""
    graph = problem.graph
    found = np.zeros((graph.n_tensors, problem.n_devices))
    if len(gradients):
        found[gradients] = op_seconds(_additions(graph, gradients), problem.cluster)
    return found


def _additions(graph: OpGraph, gradients: IntArray) -> OpGraph:
    """Makes a graph of elementwise ops that read two tensors of each gradient's size and write one."""
    dtypes = [graph.dtypes[graph.tensor_producer[tensor]] for tensor in gradients]
    ops = [
        {
            "name": f"add{at}",
            "type": "aten.add.Tensor",
            "bytes_moved": 3.0 * float(graph.tensor_bytes[tensor]),
        }
        for at, tensor in enumerate(gradients)
    ]
    return replace(build_graph(graph.name, graph.family, ops, []), dtypes=tuple(dtypes))
