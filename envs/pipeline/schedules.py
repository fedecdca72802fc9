"""The actions of each device in the order in which it runs them, for every schedule."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import lru_cache
from typing import NamedTuple

import numpy as np

from envs.pipeline.pipeline import GPIPE, INTERLEAVED, ONE_F_ONE_B, Pipeline, PipelineError
from graphs.system.array_types import IntArray

FORWARD, BACKWARD, WEIGHT, RECOMPUTE = KINDS = range(4)
"""Kinds of actions. A schedule that splits the backward pass runs in `BACKWARD` what other stages wait for,
and in `WEIGHT` the rest. A recomputed stage runs forward ops again in `RECOMPUTE`, before `BACKWARD`."""
LETTERS = "FBWR"
"""A letter for each kind, as in the tables of `torch.distributed.pipelining`, which has no `R`."""


class Action(NamedTuple):
    """The forward or backward ops of a stage in one microbatch."""

    kind: int
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"


@lru_cache(maxsize=64)
def device_actions(
    pipeline: Pipeline, n_devices: int, recomputed: tuple[int, ...] = ()
) -> tuple[tuple[Action, ...], ...]:
    """Lists the actions of each device in its order; stage `s` is on device `s % n_devices`.

    Args, Raises: as of `action_arrays`.
    """
    arrays = action_arrays(pipeline, n_devices, recomputed)
    return tuple(tuple(Action(*action) for action in of_device.T.tolist()) for of_device in arrays)


def action_arrays(pipeline: Pipeline, n_devices: int, recomputed: tuple[int, ...] = ()) -> list[IntArray]:
    """Lists kind, stage and microbatch of each device's actions in its order, int64 (3, n_actions) each.

    Args:
        n_devices: number of devices that hold stages, which are numbered by their first stage.
        recomputed: stages that run forward again before each of their backward actions.

    Raises:
        PipelineError: the schedule does not exist for so many microbatches.
    """
    if pipeline.name not in (GPIPE, ONE_F_ONE_B):
        again = [tuple(s for s in recomputed if s % n_devices == rank) for rank in range(n_devices)]
        return [_actions_of_rank(pipeline, n_devices, rank, again[rank]) for rank in range(n_devices)]
    return [in_turns(pipeline, stage, n_devices - stage, stage in recomputed) for stage in range(n_devices)]


def schedule_csv(pipeline: Pipeline, n_devices: int) -> str:
    """Writes the actions of each device in a row, as torch's schedules load them in format `compute_only`.

    Recomputation is part of a backward action there.
    """
    backward = "I" if pipeline.splits_backward else "B"
    rows = device_actions(pipeline, n_devices)
    cells = ([str(action).replace("B", backward) for action in row] for row in rows)
    return "".join(",".join(row) + "\n" for row in cells)


@lru_cache(maxsize=4096)
def in_turns(pipeline: Pipeline, stage: int, n_alive: int, again: bool) -> IntArray:
    """Lists the actions of a stage, as `action_arrays` does.

    In `gpipe`, all forward actions come first. In `1f1b`, those that can run until the first backward action
    can, then one of each in turn.

    Args:
        n_alive: microbatches that it keeps alive at most in `1f1b`: as many as devices follow from the stage
            on.

    Source: Huang et al. 2019, arXiv 1811.06965; PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503.
    """
    n = pipeline.microbatches
    batch = np.arange(n)
    n_warm_up = n if pipeline.name == GPIPE else min(n_alive, n)
    forward_turn = np.where(batch < n_warm_up, batch, 2 * batch - n_warm_up + 1)
    kind = np.repeat([FORWARD, BACKWARD], n)
    actions = np.stack([kind, np.full(2 * n, stage), np.tile(batch, 2)])
    actions = actions[:, np.argsort(np.append(forward_turn, n_warm_up + 2 * batch))]
    return _with_recomputation(actions, (stage,) if again else ())


@lru_cache(maxsize=4096)
def _actions_of_rank(pipeline: Pipeline, n_devices: int, rank: int, recomputed: tuple[int, ...]) -> IntArray:
    make = interleaved if pipeline.name == INTERLEAVED else zero_bubble
    actions = np.array(list(make(pipeline, n_devices, rank)), dtype=np.int64).T
    return _with_recomputation(actions, recomputed)


def _with_recomputation(actions: IntArray, recomputed: tuple[int, ...]) -> IntArray:
    """Puts a recomputation before each backward action of the stages that have one."""
    again = (actions[0] == BACKWARD) & np.isin(actions[1], recomputed)
    doubled = np.repeat(actions, 1 + again, axis=1)
    doubled[0, (np.arange(len(again)) + np.cumsum(again) - 1)[again]] = RECOMPUTE
    return doubled


def interleaved(pipeline: Pipeline, n_devices: int, rank: int) -> Iterator[Action]:
    """Yields the actions of several stages a device, a round of microbatches through each stage in turn.

    Source: Narayanan et al. 2021, arXiv 2104.04473; rounds as in `ScheduleInterleaved1F1B` of torch.
    """
    n_stages, per_round = pipeline.stages_per_device, microbatches_per_round(pipeline, n_devices)
    total = n_stages * pipeline.microbatches
    n_warm_up = min((n_stages - 1) * per_round + 2 * (n_devices - 1 - rank), total)
    done: defaultdict[tuple[int, int], int] = defaultdict(int)

    def next_action(kind: int, step: int) -> Action:
        local = step // per_round % n_stages
        local = n_stages - 1 - local if kind == BACKWARD else local
        microbatch = done[kind, local]
        done[kind, local] += 1
        return Action(kind, local * n_devices + rank, microbatch)

    for step in range(total + n_warm_up):
        if step < total:
            yield next_action(FORWARD, step)
        if step >= n_warm_up:
            yield next_action(BACKWARD, step - n_warm_up)


def zero_bubble(pipeline: Pipeline, n_devices: int, rank: int) -> Iterator[Action]:
    """Yields 1F1B with gradients of weights apart, `rank` microbatches later than those that others wait for.

    Source: ZB-H1 of Qi et al. 2023, arXiv 2401.10241, as `ScheduleInterleavedZeroBubble` of torch has it for
    one stage a device.
    """
    microbatches_per_round(pipeline, n_devices)
    count = pipeline.microbatches
    n_warm_up = min(n_devices - 1 - rank, count)
    n_weights = 0
    for step in range(count + n_warm_up):
        if step < count:
            yield Action(FORWARD, rank, step)
        if step >= n_warm_up:
            yield Action(BACKWARD, rank, step - n_warm_up)
            if step - n_warm_up >= rank:
                yield Action(WEIGHT, rank, n_weights)
                n_weights += 1
    for microbatch in range(n_weights, count):
        yield Action(WEIGHT, rank, microbatch)


def microbatches_per_round(pipeline: Pipeline, n_devices: int) -> int:
    """Returns the microbatches that go through a stage before the next stage of its device has its turn.

    Raises:
        PipelineError: the rounds would not be equal.
    """
    n_rounds = max(1, pipeline.microbatches // n_devices)
    if pipeline.microbatches % n_rounds:
        raise PipelineError(
            f"schedule '{pipeline.schedule}' on {n_devices} devices runs {pipeline.microbatches} "
            f"microbatches in {n_rounds} rounds, which are not equal; give a multiple of {n_rounds}, "
            f"such as {pipeline.microbatches // n_rounds * n_rounds}"
        )
    return pipeline.microbatches // n_rounds
