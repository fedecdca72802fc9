"""The order in which devices run the actions of a pipeline, for kernels, and checks that there is one."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.pipeline.arrays import FIRST, LATER, N_KINDS, Agenda
from envs.pipeline.pipeline import INTERLEAVED, SEARCHED, Pipeline, PipelineError
from envs.pipeline.schedules import action_arrays, is_order
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs.system.errors import shortened


def agenda_of(pipeline: Pipeline, problem: Problem, stages: Stages) -> Agenda:
    """Lists what each device runs.

    Raises:
        PipelineError: the stages are not on the devices that the schedule has them on.
    """
    check_schedule(pipeline, stages, [device.name for device in problem.cluster.devices])
    of_rank = action_arrays(pipeline, len(stages.ranks), stages.recomputed, stages.actions)
    of_device = dict(zip(stages.ranks.tolist(), of_rank, strict=True))
    none, update = np.zeros((3, 0), dtype=np.int64), np.array([[0], [0], [pipeline.microbatches]])
    of_devices = [of_device.get(device, none) for device in range(problem.n_devices)]
    ends = np.cumsum([each.shape[1] + 1 for each in of_devices])
    flat = [actions for each in of_devices for actions in (each, update)]
    kind, stage, microbatch = np.concatenate(flat, axis=1)
    action = stage * N_KINDS + kind
    action[ends - 1] = len(stages.devices) * N_KINDS + np.arange(problem.n_devices)
    column = np.where(microbatch == 0, FIRST, LATER)
    return Agenda(np.append(0, ends), action, microbatch, column, *np.zeros((2, len(action))))


def check_schedule(pipeline: Pipeline, stages: Stages, names: Sequence[str]) -> None:
    """Checks that the stages lie as the schedule wants them: round the devices, so many on each.

    Args:
        names: of the devices.

    Raises:
        PipelineError: they do not.
    """
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
