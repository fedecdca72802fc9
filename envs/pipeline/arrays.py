"""The arrays of pipelined steps: what the kernels read, the programs of actions, and the clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.costs.op_seconds import op_seconds
from envs.pipeline.schedules import KINDS
from envs.pipeline.stages import phases_of
from envs.problem import Problem
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import FloatArray, IntArray

N_KINDS = len(KINDS)
BACKWARD_PHASE, OPTIMIZER_PHASE, RECOMPUTED_PHASE = range(1, 4)
"""Values of `PipelineArrays.phase` that kernels compare with; the last is that of second runs."""
UNSET = -1.0
"""A time that is not known yet."""

RECEIVE, RECEIVE_ONCE, RUN, SEND, RECEIVE_SHARED, RECEIVE_SUM, ALL_REDUCE = range(7)
"""Steps of a program: wait for a tensor from another device, or for one that all microbatches share; run ops;
note when a tensor is ready to be sent. Where stages have replicas: wait for a tensor from the replica of the
microbatch, or for the reduced sum of a gradient; reduce the gradients over all replicas."""

FIRST, LATER = range(2)
"""Columns of `ActionSteps`: the first microbatch and all others."""


class PipelineArrays(NamedTuple):
    """The arrays of a pipelined step besides `ProblemArrays`."""

    phase: IntArray  # (n_ops,) 0 forward, -1 parameters and inputs, or one of the constants above
    is_parameter: IntArray  # (n_ops,) 1 = there is one of it for all microbatches
    is_gradient: (
        IntArray  # (n_tensors,) 1 = summed over microbatches: a backward op makes it for an optimizer op
    )
    accumulate_s: FloatArray  # (n_tensors, n_devices) seconds to add a gradient to the sum


class ActionSteps(NamedTuple):
    """The programs of all actions, one after the other: action `a` has steps `ptr[a]` to `ptr[a + 1]`.

    Ops that run one after the other without a wait between are one step. `row` is that of the tensor in the
    table of times, `slot` that of the tensor on this device in the table of arrivals. `RUN` has two columns,
    as the first microbatch adds no gradients: `FIRST` and `LATER`. A step that receives has the seconds of
    the transfer in the first column, and its bytes in the other.
    """

    ptr: IntArray  # (n_actions + 1,)
    code: NDArray[np.int8]  # (n_steps,) one of the constants above
    row: NDArray[np.int32]  # (n_steps,) of `RECEIVE` and `SEND`
    slot: NDArray[np.int32]  # (n_steps,) of `RECEIVE`
    source: NDArray[np.int32]  # (n_steps,) first device of the stage that `RECEIVE` copies from
    issued: NDArray[np.int32]  # (n_steps, 2) ops that `RUN` issues
    seconds: FloatArray  # (n_steps, 2) ops and gaps of `RUN`; see above
    rest_s: FloatArray  # (n_steps, 2) rest of the device after the last op of `RUN`, or before `SEND`
    issue_s: FloatArray  # (n_steps, 2) least seconds from the host's clock to the end of `RUN`


class Replicas(NamedTuple):
    """The devices of all stages: a replica is a stage on one of its devices.

    Replica `k` of `n` runs microbatches `k`, `k + n`, ..., and sends what has one of these columns in
    `Tables`. A device without a stage counts as a stage of its own.
    """

    stage: IntArray  # (n_replicas,) ascending
    device: IntArray  # (n_replicas,)
    head: IntArray  # (n_devices,) first device of the stage of a device
    number: IntArray  # (n_devices,) which replica a device is
    n_replicas: IntArray  # (n_devices,) replicas of the stage of a device
    member: IntArray  # (n_devices, n_most) devices of the stage whose first device this is
    reduce_s: FloatArray  # (n_devices,) seconds to reduce its gradients, or `UNSET` if nothing is reduced


class ActionLayout(NamedTuple):
    """The ops of each action, and the rows and slots of the tensors that go to other devices.

    Action `replica * N_KINDS + kind` is that of a replica, and the updates of device `d` are action
    `n_replicas * N_KINDS + d`. Replicas of a stage share a list of ops.
    """

    device: IntArray  # (n_actions,) where it runs
    list_of: IntArray  # (n_actions,) list of its ops
    ptr: IntArray  # (n_lists + 1,) first position of a list in `ops`
    ops: IntArray  # (n_ops,) ops by list, in program order
    row_of: NDArray[np.int32]  # (n_tensors,) row of a tensor, -1 = no other device reads it
    sum_row_of: NDArray[np.int32]  # (n_tensors,) row of a gradient's sum, -1 = no other device reads it
    slot_of: NDArray[np.int32]  # (n_rows, n_devices) slot of a row on a device, -1 = it is not sent there


class Tables(NamedTuple):
    """Times at which tensors are made and sent, seconds, or `UNSET`; a column for each microbatch.

    Sums of gradients have the last column, parameters the first.
    """

    ready_s: FloatArray  # (n_rows, n_microbatches) made
    sent_s: FloatArray  # (n_slots, n_microbatches) end of the copy
    arrival_s: FloatArray  # (n_slots, n_microbatches)
    reduced_s: FloatArray  # (n_devices,) end of the all-reduce of the stage whose first device this is
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


def pipeline_arrays(problem: Problem) -> PipelineArrays:
    """Makes the arrays of a problem."""
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
    )


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
