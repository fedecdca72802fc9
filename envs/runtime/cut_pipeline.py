"""Cuts a captured step into the device programs of a pipeline: its actions, once for every microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from envs.pipeline.agenda import check_schedule
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, KINDS, WEIGHT, device_actions
from envs.pipeline.stages import Stages, phases_of
from envs.runtime.cut import cut
from envs.runtime.device_program import DeviceProgram, ExecutionError, Receive, Send
from envs.runtime.device_writer import ActionSpan, DeviceWriter
from envs.runtime.places import Places
from graphs.capture.captured_step import CapturedStep
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray

N_KINDS = len(KINDS)


def cut_pipeline(
    captured: CapturedStep, stages: Stages, pipeline: Pipeline, n_devices: int
) -> tuple[list[DeviceProgram], list[list[ActionSpan]]]:
    """Cuts a step, which is that of one microbatch, into the programs of the devices.

    Input and output `i` of microbatch `m` have index `m * n + i`, where a microbatch has `n` of them. The
    gradient of the loss by itself is 1 / microbatches. Gradients are added up where they are made.

    Returns:
        One device program per device, and where each of its actions stands in it.

    Raises:
        PipelineError: the stages are none of this step, or the schedule cannot run them.
        ExecutionError: an op cannot be run on its own, or microbatches cannot follow each other.
    """
    _check_stages(captured.graph, stages, n_devices)
    check_schedule(pipeline, stages, [f"device {device}" for device in range(n_devices)])
    n_actions, kinds = len(stages.devices) * N_KINDS, action_kinds(captured.graph, stages, pipeline)
    in_stage = stages.stage_of >= 0
    place_of = np.where(in_stage, stages.stage_of * N_KINDS + kinds, n_actions + stages.device_of)
    places = Places(
        parts=cut(captured, place_of, n_actions + n_devices),
        devices=[*np.repeat(stages.devices, N_KINDS).tolist(), *range(n_devices)],
        first_home=n_actions,
        count=pipeline.microbatches,
    )
    if any(home.outputs for home in places.homes):
        raise ExecutionError("the model returns one of its inputs or parameters, which a pipeline cannot")
    ranks = stages.ranks.tolist()
    actions = dict(zip(ranks, device_actions(pipeline, len(ranks)), strict=True))
    writers = [DeviceWriter(places, device) for device in range(n_devices)]
    for device, writer in enumerate(writers):
        writer.begin()
        for action in actions.get(device, ()):
            writer.run(action, action.stage * N_KINDS + action.kind)
        writer.end()
    for writer in writers:
        writer.find_senders()
    _put_in_order(writers)
    n_inputs, n_outputs = len(captured.step.tensors), len(captured.trace.outputs)
    return [each.program(n_inputs, n_outputs) for each in writers], [each.spans for each in writers]


def action_kinds(graph: OpGraph, stages: Stages, pipeline: Pipeline) -> IntArray:
    """Returns the kind of the action that runs each forward and backward op, int64 (n_ops,)."""
    phase = phases_of(graph)
    kinds: IntArray = np.where(phase == 1, BACKWARD, phase)
    if pipeline.splits_backward:
        for op in np.flatnonzero(phase == 1)[::-1]:
            readers = graph.successors.row(op)
            readers = readers[phase[readers] == 1]
            waits = (stages.stage_of[readers] != stages.stage_of[op]) | (kinds[readers] == BACKWARD)
            kinds[op] = BACKWARD if waits.any() else WEIGHT
    return kinds


def _check_stages(graph: OpGraph, stages: Stages, n_devices: int) -> None:
    if len(stages.stage_of) != graph.n_ops:
        raise PipelineError(f"the stages are of {len(stages.stage_of)} ops; the step has {graph.n_ops}")
    if (last := int(max(stages.device_of.max(), stages.devices.max()))) >= n_devices:
        raise PipelineError(f"the stages use device {last}, but there are {n_devices} devices, from 0")
    if stages.recomputed or any(len(each) > 1 for each in stages.replicas):
        raise PipelineError(
            "the plan has replicas or recomputation of stages, which cannot run yet; place with a pipeline "
            "that is_plain"
        )
    forward = stages.stage_of[phases_of(graph) == 0]
    empty = np.setdiff1d(np.arange(len(stages.devices)), forward)
    if len(empty):
        raise PipelineError(f"stage {empty[0]} has no forward ops; give each stage some")


def _put_in_order(writers: Sequence[DeviceWriter]) -> None:
    """Runs all devices in thought, and gives each call its time in instructions as its number.

    Raises:
        PipelineError: devices wait for each other.
    """
    at, clocks, sent_at = [0] * len(writers), [0] * len(writers), dict[int, int]()
    has_moved = True
    while has_moved:
        has_moved = False
        for index, writer in enumerate(writers):
            while at[index] < len(writer.instructions):
                each = writer.instructions[at[index]]
                if isinstance(each, Receive):
                    if each.transfer.index not in sent_at:
                        break
                    clocks[index] = max(clocks[index], sent_at[each.transfer.index])
                clocks[index] += 1
                if isinstance(each, Send):
                    sent_at[each.transfer.index] = clocks[index]
                elif not isinstance(each, Receive) and each.op >= 0:
                    writer.instructions[at[index]] = replace(each, op=clocks[index])
                at[index] += 1
                has_moved = True
    for index, writer in enumerate(writers):
        if at[index] < len(writer.instructions):
            raise PipelineError(
                f"the schedule cannot run these stages: device {index} and another wait for each other; put "
                "each backward op into the stage of the forward ops that it belongs to"
            )
