"""The order in which devices run the actions of a pipeline, for kernels, and checks that there is one.

A device has a list of ops for each action of its stages; `envs.pipeline.layout` says of which ops.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from envs.pipeline.arrays import FIRST, LATER, N_KINDS, Agenda
from envs.pipeline.pipeline import INTERLEAVED, Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, FORWARD, RECOMPUTE, WEIGHT, action_arrays
from envs.pipeline.stages import Stages
from envs.problem import Problem
from graphs.system.array_types import IntArray


def agenda_of(pipeline: Pipeline, problem: Problem, stages: Stages) -> Agenda:
    """Lists what each device runs.

    Raises:
        PipelineError: the stages are not on the devices that the schedule has them on.
    """
    check_schedule(pipeline, stages, [device.name for device in problem.cluster.devices])
    of_rank = action_arrays(pipeline, len(stages.ranks), stages.recomputed)
    of_device = dict(zip(stages.ranks.tolist(), of_rank, strict=True))
    none, update = np.zeros((3, 0), dtype=np.int64), np.array([[0], [0], [pipeline.microbatches]])
    of_devices = [of_device.get(device, none) for device in range(problem.n_devices)]
    ends = np.cumsum([actions.shape[1] + 1 for actions in of_devices])
    flat = [columns for actions in of_devices for columns in (actions, update)]
    kind, stage, microbatch = np.concatenate(flat, axis=1)
    action = stage * N_KINDS + kind
    action[ends - 1] = len(stages.devices) * N_KINDS + np.arange(problem.n_devices)
    column = np.where(microbatch == 0, FIRST, LATER)
    start_s, end_s = np.zeros((2, len(action)))
    list_of, first = number_lists(stages.devices, problem.n_devices)
    return Agenda(np.append(0, ends), action, microbatch, column, start_s, end_s, list_of, first)


def number_lists(devices: IntArray, n_devices: int) -> tuple[IntArray, IntArray]:
    """Numbers the lists of ops device by device, in the order in which a device runs them in a microbatch.

    Args:
        devices: device of each stage, int64 (n_stages,).

    Returns:
        List of each action, int64 (n_actions,), and first list of each device, int64 (n_devices + 1,).
    """
    in_order, first, updates = [], [0], N_KINDS * len(devices)
    for device in range(n_devices):
        stages = np.flatnonzero(devices == device).tolist()
        in_order += [N_KINDS * stage + FORWARD for stage in stages]
        for stage in reversed(stages):
            in_order += [N_KINDS * stage + kind for kind in (RECOMPUTE, BACKWARD, WEIGHT)]
        in_order += [updates + device, updates + n_devices + device]
        first.append(len(in_order))
    return np.argsort(in_order), np.array(first)


def check_schedule(pipeline: Pipeline, stages: Stages, names: Sequence[str]) -> None:
    """Checks that the stages lie as the schedule wants them: round the devices, so many on each.

    Args:
        names: names of the devices.

    Raises:
        PipelineError: they do not.
    """
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
