"""The arrays of pipelined steps: what the kernels read, the programs of actions, and the clocks."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.costs.op_seconds import op_seconds
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.schedules import KINDS
from envs.pipeline.stages import Stages, phases_of
from envs.problem import Problem
from envs.problem_arrays import ProblemArrays
from graphs.op_graph import OpGraph, build_graph
from graphs.system.array_types import FloatArray, IntArray

N_KINDS = len(KINDS)
BACKWARD_PHASE, OPTIMIZER_PHASE, RECOMPUTED_PHASE = range(1, 4)
"""Values of `PipelineArrays.phase` that kernels compare with; the last is that of second runs."""
UNSET = -1.0
"""A time that is not known yet."""

RUN, SEND, RECEIVE, RECEIVE_ONCE = range(4)
"""Steps of a program: run ops; note when a tensor is ready to be sent; wait for a tensor from another device,
of the microbatch or, `ONCE`, one that all microbatches share."""

DONE, FROM = range(2)
"""Rows of `Sums.times_s`; `FROM` is when the sum over replicas is there."""

FIRST, LATER = range(2)
"""Columns of `Steps` and `Agenda`: the first microbatch and all others."""


class PipelineArrays(NamedTuple):
    """The arrays of a pipelined step besides `ProblemArrays`."""

    phase: IntArray  # (n_ops,) 0 forward, -1 parameters and inputs, or one of the constants above
    is_parameter: IntArray  # (n_ops,) 1 = there is one of it for all microbatches
    is_gradient: (
        IntArray  # (n_tensors,) 1 = summed over microbatches: a backward op makes it for an optimizer op
    )
    accumulate_s: FloatArray  # (n_tensors, n_devices) seconds to add a gradient to the sum
    is_egress: bool  # each device queues all of its copies in the order in which it makes the tensors


class PlacedStages(NamedTuple):
    """The stages of a placed graph."""

    device_of: IntArray  # (n_first_ops,)
    stage_of: IntArray  # (n_first_ops,) of forward and backward ops
    device: IntArray  # (n_stages,)
    recomputed: IntArray  # (n_stages,) 1 = its forward ops run again before each backward action
    splits_backward: bool  # gradients of weights have actions of their own


class SecondRuns(NamedTuple):
    """The second runs of forward ops, which are ops of their own behind all others; empty = none."""

    first: IntArray  # (n_ops,) first run of an op; the op itself for all others
    op: IntArray  # (n_first_ops,) second run of an op, -1 = none
    tensor: IntArray  # (n_first_tensors,) second tensor of a tensor, -1 = none


class OpLists(NamedTuple):
    """The ops of each list, as `envs.pipeline.layout` makes them; a place is that of an op here."""

    ptr: IntArray  # (n_lists + 1,) first place of a list
    op: IntArray  # (n_places,) in program order within a list
    list_of: NDArray[np.int32]  # (n_ops,) -1 = in none


class Sums(NamedTuple):
    """The gradients that replicas of the pipeline sum; arrays without entries = there is one replica."""

    is_summed: IntArray  # (n_first_tensors,) 1 = replicas sum it
    times_s: FloatArray  # (2, n_first_tensors) rows `DONE` (end of its last accumulation; written) and `FROM`
    begin_s: FloatArray  # (n_devices,) the updates of a device start no sooner
    least_s: float  # seconds of the step at least


class Steps(NamedTuple):
    """The programs of all lists of a step, and the tensors that go from device to device.

    Ops that run one after the other without a wait between are one step of a program. `RUN` has two columns,
    as the first microbatch adds no gradients: `FIRST` and `LATER`.

    What goes to other devices is a wire: `2 * tensor`, or `2 * tensor + 1` for its sum over microbatches. A
    wire that is sent has a row; where it is received, it has a slot. Where replicas sum a gradient, `SEND` of
    number `-2 - tensor` notes when it is done, and `RECEIVE` of that number waits for the sum.
    """

    n: IntArray  # (3,) steps, rows and slots so far
    step_ptr: IntArray  # (n_lists + 1,) first step of a program
    code: NDArray[np.int8]  # (n_steps,) one of the constants above
    number: NDArray[np.int32]  # (n_steps,) row of `SEND`, slot of `RECEIVE`
    reader: NDArray[np.int32]  # (n_steps,) place of the op for which to `RECEIVE`
    issued: NDArray[np.int32]  # (n_steps, 2) ops that `RUN` issues
    seconds: FloatArray  # (n_steps, 2) ops and gaps of `RUN`
    rest_s: FloatArray  # (n_steps, 2) rest of the device after the last op of `RUN`, or before `SEND`
    issue_s: FloatArray  # (n_steps, 2) least seconds from the host's clock to the end of `RUN`
    row_of: NDArray[np.int32]  # (n_wires,) -1 = no other device reads it
    row_wire: NDArray[np.int32]  # (n_rows,)
    slot_ptr: IntArray  # (n_devices + 1,) first slot of a device
    slot_of: NDArray[np.int32]  # (n_wires,) the last one that was made
    heard: NDArray[np.int32]  # (n_wires,) scratch: the last list that waits for it
    slot_wire: NDArray[np.int32]  # (n_slots,)
    source: NDArray[np.int32]  # (n_slots,) device that it comes from
    target: NDArray[np.int32]  # (n_slots,) device that receives it, where senders queue copies
    at_end: NDArray[np.int32]  # (n_slots,) 1 = updates alone read it, only that of the last microbatch
    transfer_s: FloatArray  # (n_slots,) seconds of the transfer between them
    first_slot: NDArray[np.int32]  # (n_rows,) first copy that its device queues; (0,) = none does
    next_slot: NDArray[np.int32]  # (n_slots,) next copy of the same row, -1 = none


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
    """The actions of each device in its order, the updates last, and the list of ops of each action.

    Action `stage * N_KINDS + kind` is that of a stage. Those of the updates of each device follow, then those
    of its parameters and inputs, which do not run.
    """

    ptr: IntArray  # (n_devices + 1,) entries of a device
    action: IntArray  # (n_entries,)
    microbatch: IntArray  # (n_entries,)
    column: IntArray  # (n_entries,) `FIRST` where the device adds no gradients yet, else `LATER`
    start_s: FloatArray  # (n_entries,) start of the first op; written
    end_s: FloatArray  # (n_entries,) end of the last op; written
    list_of: IntArray  # (n_actions,) list of an action
    first: IntArray  # (n_devices + 1,) first list of a device; its last two do not run in microbatches


def pipeline_arrays(problem: Problem) -> PipelineArrays:
    """Makes the arrays of a problem."""
    graph = problem.graph
    phase = phases_of(graph)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    for_optimizer = np.zeros(graph.n_tensors, dtype=bool)
    for_optimizer[tensor[phase[graph.consumers.items] == 2]] = True
    is_gradient = for_optimizer & (phase[graph.tensor_producer] == 1)
    accumulate_s = np.zeros((graph.n_tensors, problem.n_devices))
    if len(gradients := np.flatnonzero(is_gradient)):
        accumulate_s[gradients] = op_seconds(_additions(graph, gradients), problem.cluster)
    is_parameter = np.array([kind == "parameter" for kind in graph.op_types])
    return PipelineArrays(
        phase=phase,
        is_parameter=is_parameter.astype(np.int64),
        is_gradient=is_gradient.astype(np.int64),
        accumulate_s=accumulate_s,
        is_egress=problem.cluster.sharing == "egress",
    )


def placed_arrays(stages: Stages, pipeline: Pipeline) -> PlacedStages:
    """Makes the arrays of stages."""
    recomputed = np.zeros(len(stages.devices), dtype=np.int64)
    recomputed[list(stages.recomputed)] = 1
    arrays = stages.device_of, stages.stage_of, stages.devices, recomputed
    return PlacedStages(*arrays, pipeline.splits_backward)


def _additions(graph: OpGraph, gradients: IntArray) -> OpGraph:
    """Makes a graph of elementwise ops that read two tensors of each gradient's size and write one."""
    dtypes = [graph.dtypes[graph.tensor_producer[tensor]] for tensor in gradients]
    ops = [
        {
            "name": f"add{number}",
            "type": "aten.add.Tensor",
            "bytes_moved": 3.0 * float(graph.tensor_bytes[tensor]),
        }
        for number, tensor in enumerate(gradients)
    ]
    return replace(build_graph(graph.name, graph.family, ops, []), dtypes=tuple(dtypes))


def second_runs(p: ProblemArrays, q: PipelineArrays) -> tuple[ProblemArrays, PipelineArrays, SecondRuns]:
    """Adds a second run of each forward op to the arrays of a problem, except to what ops read."""
    again = np.flatnonzero(q.phase == 0)
    made = np.flatnonzero(q.phase[p.producer] == 0)
    op, tensor = (_numbers(n, of) for n, of in ((len(q.phase), again), (len(p.producer), made)))
    outputs = np.diff(p.output_ptr)
    nothing = np.zeros(len(again), dtype=np.int64)
    made_again = [tensor[p.output_item[p.output_ptr[of] : p.output_ptr[of + 1]]] for of in again.tolist()]
    p = p._replace(
        op_seconds=np.concatenate([p.op_seconds, p.op_seconds[again]]),
        is_source=np.concatenate([p.is_source, nothing]),
        output_ptr=np.concatenate([[0], np.concatenate([outputs, outputs[again]]).cumsum()]),
        output_item=np.concatenate([p.output_item, *made_again]),
        producer=np.concatenate([p.producer, op[p.producer[made]]]),
        size=np.concatenate([p.size, p.size[made]]),
        owner=np.concatenate([p.owner, np.full(len(made), -1)]),
        resident=np.concatenate([p.resident, np.zeros(len(again))]),
    )
    q = q._replace(
        phase=np.concatenate([q.phase, np.full(len(again), RECOMPUTED_PHASE)]),
        is_parameter=np.concatenate([q.is_parameter, nothing]),
        is_gradient=np.concatenate([q.is_gradient, np.zeros(len(made), dtype=np.int64)]),
        accumulate_s=np.concatenate([q.accumulate_s, np.zeros((len(made), q.accumulate_s.shape[1]))]),
    )
    return p, q, SecondRuns(np.concatenate([np.arange(len(op)), again]), op, tensor)


def _numbers(n: int, chosen: IntArray) -> IntArray:
    """Numbers some of `n` from `n` on; -1 for the others."""
    numbers = np.full(n, -1, dtype=np.int64)
    numbers[chosen] = n + np.arange(len(chosen))
    return numbers
