"""Cuts a captured step into the device programs of a pipeline: its actions, once for every microbatch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from envs.pipeline.agenda import check_schedule
from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, KINDS, RECOMPUTE, WEIGHT, device_actions, splits_of
from envs.pipeline.stages import Stages, phases_of
from envs.runtime.cut import cut
from envs.runtime.device_program import (
    Call,
    DeviceProgram,
    ExecutionError,
    Instruction,
    Receive,
    Send,
    Slot,
    TensorSpec,
    Transfer,
    find_function,
    slots_in,
)
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
    parts = cut(captured, place_of, n_actions + n_devices)
    for stage in stages.recomputed:
        _run_again(parts, stage * N_KINDS)
    places = Places(
        parts=parts,
        devices=[*np.repeat(stages.devices, N_KINDS).tolist(), *range(n_devices)],
        first_home=n_actions,
        count=pipeline.microbatches,
    )
    if any(home.outputs for home in places.homes):
        raise ExecutionError("the model returns one of its inputs or parameters, which a pipeline cannot")
    ranks = stages.ranks.tolist()
    orders = device_actions(pipeline, len(ranks), stages.recomputed, actions=stages.actions)
    actions = dict(zip(ranks, orders, strict=True))
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
    splits = splits_of(pipeline, len(stages.devices), stages.actions)
    if any(splits):
        for op in np.flatnonzero(phase == 1)[::-1]:
            if not splits[stages.stage_of[op]]:
                continue
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
    forward = stages.stage_of[phases_of(graph) == 0]
    empty = np.setdiff1d(np.arange(len(stages.devices)), forward)
    if len(empty):
        raise PipelineError(f"stage {empty[0]} has no forward ops; give each stage some")


def _run_again(parts: list[DeviceProgram], first: int) -> None:
    """Moves what a stage's backward actions read of its forward action into an action that makes it again.

    It has the forward calls that these reads need. They draw the random numbers of the first run.

    Args:
        parts: what each place runs; those of the stage's forward and `RECOMPUTE` actions are replaced.
        first: place of the stage's forward action.
    """
    again, backward = first + RECOMPUTE, (first + BACKWARD, first + WEIGHT)
    n_slots, needed = parts[first].n_slots, set[Slot]()
    kept, second = list[Instruction](), list[Instruction]()  # from the last one back
    for each in reversed(parts[first].instructions):
        if isinstance(each, Send) and each.transfer.target in backward:
            second.append(replace(each, transfer=replace(each.transfer, source=again)))
            needed.add(each.value)
            continue
        kept.append(each)
        if isinstance(each, Send) or each.out not in needed:
            continue
        second.append(each)
        if isinstance(each, Receive):
            continue
        needed.update(slots_in([each.arguments, *each.keywords.values()]))
        if _draws_random_numbers(each):
            state, present, unread = (Slot(n_slots + at) for at in range(3))
            n_slots += 3
            handed = Transfer(-1 - each.op, first, again, 0, TensorSpec((), (), torch.uint8, 0))
            kept += Send(handed, state), Call(-1, "random_state", (), {}, state)
            second.insert(-1, Call(-1, "random_state", (present,), {}, unread))
            second += Call(-1, "random_state", (state,), {}, present), Receive(handed, state)
    for place, found in ((first, kept), (again, second)):
        parts[place] = replace(parts[place], instructions=tuple(reversed(found)), n_slots=n_slots)


def _draws_random_numbers(call: Call) -> bool:
    """Says whether a call draws random numbers; custom operators that do not say it may."""
    tags = getattr(find_function(call.function), "tags", None)
    is_known = tags is None or call.function.startswith(("aten.", "prims."))
    return not is_known or torch.Tag.nondeterministic_seeded in (tags or ())


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
