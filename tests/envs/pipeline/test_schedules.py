"""Schedules of pipelines: those of torch, and bad ones in one line."""

from __future__ import annotations

from typing import Any

import pytest
import torch.distributed.pipelining.schedules as torch_schedules

from envs.pipeline.pipeline import Pipeline, PipelineError
from envs.pipeline.schedules import BACKWARD, FORWARD, WEIGHT, device_actions

Kind = torch_schedules._ComputationType
KINDS = {
    Kind.FORWARD: FORWARD,
    Kind.FULL_BACKWARD: BACKWARD,
    Kind.BACKWARD_INPUT: BACKWARD,
    Kind.BACKWARD_WEIGHT: WEIGHT,
}


def orders_of_torch(schedule: Any, n_devices: int, n_each: int, microbatches: int) -> list[list[Any]]:
    """Actions of each device in torch, which makes them from a few numbers alone."""
    made = schedule.__new__(schedule)
    made.pp_group_size, made.n_local_stages, made._n_microbatches = n_devices, n_each, microbatches
    made.number_of_rounds = max(1, microbatches // n_devices)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    orders = [made._calculate_single_rank_operations(rank) for rank in range(n_devices)]
    kept = [[action for action in order if action is not None] for order in orders]
    return [[(KINDS[a.computation_type], a.stage_index, a.microbatch_index) for a in order] for order in kept]


@pytest.mark.parametrize("n_devices", range(1, 6))
@pytest.mark.parametrize(
    ("name", "schedule", "n_each"),
    [
        ("interleaved-1f1b:1", torch_schedules.ScheduleInterleaved1F1B, 1),
        ("interleaved-1f1b", torch_schedules.ScheduleInterleaved1F1B, 2),
        ("interleaved-1f1b:3", torch_schedules.ScheduleInterleaved1F1B, 3),
        ("zero-bubble", torch_schedules.ScheduleInterleavedZeroBubble, 1),
    ],
)
def test_orders_are_those_of_torch(n_devices: int, name: str, schedule: Any, n_each: int) -> None:
    for microbatches in range(1, 16):
        if microbatches % max(1, microbatches // n_devices):
            with pytest.raises(PipelineError, match="rounds, which are not equal; give a multiple of"):
                device_actions(Pipeline(name, microbatches), n_devices)
            continue
        expected = orders_of_torch(schedule, n_devices, n_each, microbatches)
        found = device_actions(Pipeline(name, microbatches), n_devices)
        assert [[tuple(action) for action in each] for each in found] == expected


def test_one_forward_one_backward_keeps_few_microbatches_alive() -> None:
    for rank, actions in enumerate(device_actions(Pipeline("1f1b", 9), 4)):
        alive = most = 0
        for action in actions:
            alive += 1 if action.kind == FORWARD else -1
            most = max(most, alive)
        assert (most, alive) == (4 - rank, 0)


@pytest.mark.parametrize(
    ("schedule", "microbatches", "message"),
    [
        ("2f2b", 8, "unknown schedule '2f2b'; use gpipe, 1f1b, interleaved-1f1b:V, zero-bubble or auto"),
        ("1f1b:2", 8, "unknown schedule '1f1b:2'"),
        ("interleaved-1f1b:0", 8, "'0' is no number of stages"),
        ("1f1b", 0, "0 microbatches; a step has at least 1"),
    ],
)
def test_bad_pipelines_are_refused(schedule: str, microbatches: int, message: str) -> None:
    with pytest.raises(PipelineError, match=message):
        Pipeline(schedule, microbatches)
