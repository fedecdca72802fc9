"""The order in which devices run the actions of a pipeline, for kernels, and checks that there is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.pipeline.arrays import FIRST, LATER, N_KINDS, UNSET, Agenda, Replicas
from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, SEARCHED, Pipeline, PipelineError
from envs.pipeline.schedules import action_arrays, is_order
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs.system.errors import shortened


def replicas_of(stages: Stages, n_devices: int) -> Replicas:
    """Numbers the replicas of all stages; the seconds of their all-reduces are not set."""
    devices = stages.replicas or [(device,) for device in stages.devices.tolist()]
    head, number, count = np.arange(n_devices), np.zeros(n_devices, np.int64), np.ones(n_devices, np.int64)
    member = np.tile(head[:, None], max(map(len, devices)))
    for each in devices:
        members = list(each)
        head[members], number[members], count[members] = each[0], np.arange(len(each)), len(each)
        member[each[0], : len(each)] = each
    return Replicas(
        stage=np.repeat(np.arange(len(devices)), [len(each) for each in devices]),
        device=np.concatenate([np.array(each) for each in devices]),
        head=head,
        number=number,
        n_replicas=count,
        member=member,
        reduce_s=np.full(n_devices, UNSET),
    )


def agenda_of(pipeline: Pipeline, problem: Problem, stages: Stages, replicas: Replicas) -> Agenda:
    """Lists what each device runs.

    Raises:
        PipelineError: the stages are not on the devices that the schedule has them on.
    """
    check_schedule(pipeline, stages, [device.name for device in problem.cluster.devices])
    counts = tuple(len(each) for each in stages.replicas)
    devices = replicas.device if counts else stages.ranks
    of_rank = action_arrays(pipeline, len(stages.ranks), stages.recomputed, counts, stages.actions)
    of_device = dict(zip(devices.tolist(), of_rank, strict=True))
    none, update = np.zeros((3, 0), dtype=np.int64), np.array([[0], [0], [pipeline.microbatches]])
    of_devices = [of_device.get(device, none) for device in range(problem.n_devices)]
    ends = np.cumsum([each.shape[1] + 1 for each in of_devices])
    flat = [actions for each in of_devices for actions in (each, update)]
    kind, stage, microbatch = np.concatenate(flat, axis=1)
    device = np.repeat(np.arange(problem.n_devices), np.diff(ends, prepend=0))
    replica = np.searchsorted(replicas.stage, stage) + replicas.number[device]
    action = replica * N_KINDS + kind
    action[ends - 1] = len(replicas.stage) * N_KINDS + np.arange(problem.n_devices)
    column = np.where(microbatch < replicas.n_replicas[device], FIRST, LATER)
    return Agenda(np.append(0, ends), action, microbatch, column, *np.zeros((2, len(action))))


def check_no_replicas(stages: Stages) -> None:
    """Checks that each stage has one device, as runtimes need it; else it is a PipelineError."""
    for stage, devices in enumerate(stages.replicas):
        if len(devices) > 1:
            raise PipelineError(
                f"stage {stage} has {len(devices)} replicas, which runtimes do not run; place with "
                "may_replicate=False in the Pipeline"
            )


def check_schedule(pipeline: Pipeline, stages: Stages, names: Sequence[str]) -> None:
    """Checks that the stages lie as the schedule wants them: round the devices, so many on each.

    Args:
        names: of the devices.

    Raises:
        PipelineError: they do not.
    """
    if stages.replicas:
        _check_replicas(pipeline, stages, names)
    if stages.actions:
        _check_actions(pipeline, stages)
    n_each = pipeline.stages_per_device
    expected = np.tile(stages.ranks, n_each)
    if len(stages.devices) == len(expected) and (stages.devices == expected).all():
        return
    used = [names[device] for device in stages.devices.tolist()]
    rule = (
        f"schedule '{pipeline.schedule}' has {n_each} stages on each device, in rounds over the devices"
        if pipeline.name == INTERLEAVED
        else f"schedule '{pipeline.schedule}' has one stage on each device"
    )
    raise PipelineError(f"{rule}, but the {len(used)} stages are on {', '.join(used)}")


def _check_actions(pipeline: Pipeline, stages: Stages) -> None:
    """Checks that the order that stages have of their own suits the schedule, and is one."""
    if pipeline.name != SEARCHED:
        raise PipelineError(
            f"the placement has an order of actions, which schedule '{pipeline.schedule}' does not take; use "
            f"'{SEARCHED}'"
        )
    if len(stages.actions) != len(stages.devices):
        raise PipelineError(
            f"{len(stages.actions)} orders of actions for {len(stages.devices)} stages; give each stage one"
        )
    for stage, word in enumerate(stages.actions):
        if not is_order(word, pipeline.microbatches):
            raise PipelineError(
                f"stage {stage} has actions '{shortened(word)}'; give {pipeline.microbatches} of F and of B, "
                "or of F, I and W, each F before its B or I, and each I before its W"
            )


def _check_replicas(pipeline: Pipeline, stages: Stages, names: Sequence[str]) -> None:
    """Checks that the schedule and the microbatches allow the replicas, and that no device has two."""
    replicates = pipeline.name in (GPIPE, ONE_F_ONE_B)
    most = pipeline.microbatches if replicates else 1
    for stage, devices in enumerate(stages.replicas):
        if len(devices) > most:
            rule = (
                f"a step of {most} microbatches keeps at most {most} busy"
                if replicates
                else f"schedule '{pipeline.schedule}' has one for each stage; use {GPIPE} or {ONE_F_ONE_B}"
            )
            raise PipelineError(f"stage {stage} has {len(devices)} devices, but {rule}")
    flat = [device for devices in stages.replicas for device in devices]
    again = next((device for at, device in enumerate(flat) if device in flat[:at]), None)
    if again is not None:
        raise PipelineError(
            f"device '{names[again]}' is a replica twice; a device with replicas has one stage"
        )
