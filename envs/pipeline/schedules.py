"""The actions of each device in the order in which it runs them, for every schedule."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from typing import NamedTuple

from envs.pipeline.pipeline import (
    GPIPE,
    INTERLEAVED,
    ONE_F_ONE_B,
    ZERO_BUBBLE,
    Pipeline,
    PipelineError,
)

FORWARD, BACKWARD, WEIGHT, RECOMPUTE = KINDS = range(4)
"""Kinds of actions. A schedule that splits the backward pass runs in `BACKWARD` what other stages wait for,
and in `WEIGHT` the rest. A recomputed stage runs forward ops again in `RECOMPUTE`, before `BACKWARD`."""
LETTERS = "FBWR"
"""A letter for each kind, as in the tables of `torch.distributed.pipelining`, which has no `R`."""
KIND_OF = {"F": FORWARD, "B": BACKWARD, "I": BACKWARD, "W": WEIGHT}
"""Kinds by the letters of a stage's order: `B` is a whole backward pass, `I` one without `W`."""


class Action(NamedTuple):
    """The forward or backward ops of a stage in one microbatch."""

    kind: int
    stage: int
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{LETTERS[self.kind]}{self.microbatch}"


@lru_cache(maxsize=64)
def device_actions(
    pipeline: Pipeline,
    n_devices: int,
    recomputed: tuple[int, ...] = (),
    replicas: tuple[int, ...] = (),
    actions: tuple[str, ...] = (),
) -> tuple[tuple[Action, ...], ...]:
    """Lists the actions of each device in its order; stage `s` is on device `s % n_devices`.

    Args:
        n_devices: that hold stages, numbered by their first stage.
        recomputed: stages that run forward again before each of their backward actions.
        replicas: devices of each stage, for `gpipe` and `1f1b`; those of stage 0 come first in the list.
        actions: letters of the actions of each stage, for `searched`; by default those of `zero-bubble`.

    Raises:
        PipelineError: the schedule does not exist for so many microbatches.
    """
    if pipeline.name in (GPIPE, ONE_F_ONE_B):
        make = gpipe if pipeline.name == GPIPE else one_f_one_b
        counts = replicas or (1,) * n_devices
        orders = [
            make(pipeline, counts, stage, number)
            for stage, count in enumerate(counts)
            for number in range(count)
        ]
    elif actions:
        return tuple(_spelled(word, stage, stage in recomputed) for stage, word in enumerate(actions))
    else:
        make_rank = interleaved if pipeline.name == INTERLEAVED else zero_bubble
        orders = [make_rank(pipeline, n_devices, rank) for rank in range(n_devices)]
    return tuple(tuple(_with_recomputation(order, recomputed)) for order in orders)


@lru_cache(maxsize=1024)
def _spelled(word: str, stage: int, recomputes: bool) -> tuple[Action, ...]:
    """Lists the actions of a stage; letters that are alike stand for one microbatch after the other."""
    done = Counter[str]()
    found = []
    for letter in word:
        found.append(Action(KIND_OF[letter], stage, done[letter]))
        done[letter] += 1
    return tuple(_with_recomputation(iter(found), (stage,) if recomputes else ()))


@lru_cache(maxsize=1024)
def is_order(word: str, microbatches: int) -> bool:
    """Says whether letters are an order of a stage's actions: each `F` before its `B`, or `I` and `W`."""
    letters = "FIW" if "W" in word else "FB"
    places = [[at for at, each in enumerate(word) if each == letter] for letter in letters]
    return (
        set(map(len, places)) == {microbatches}
        and len(word) == len(letters) * microbatches
        and all(one < next_ for pair in pairwise(places) for one, next_ in zip(*pair, strict=True))
    )


def splits_of(pipeline: Pipeline, n_stages: int, actions: Sequence[str] = ()) -> tuple[bool, ...]:
    """Says of each stage whether it computes the gradients of weights in actions of their own."""
    return tuple("W" in word for word in actions) or (pipeline.splits_backward,) * n_stages


def schedule_csv(pipeline: Pipeline, n_devices: int, actions: tuple[str, ...] = ()) -> str:
    """Writes the actions of each device in a row, as torch's schedules load them in format `compute_only`.

    Recomputation is part of a backward action there.
    """
    splits = splits_of(pipeline, n_devices * pipeline.stages_per_device, actions)
    rows = device_actions(pipeline, n_devices, actions=actions)
    cells = ([str(each).replace("B", "I" if splits[each.stage] else "B") for each in row] for row in rows)
    return "".join(",".join(row) + "\n" for row in cells)


def _with_recomputation(actions: Iterator[Action], recomputed: tuple[int, ...]) -> Iterator[Action]:
    for action in actions:
        if action.kind == BACKWARD and action.stage in recomputed:
            yield action._replace(kind=RECOMPUTE)
        yield action


def gpipe(pipeline: Pipeline, counts: tuple[int, ...], stage: int, number: int) -> Iterator[Action]:
    """Yields all forward actions of a replica of a stage, then all backward actions.

    Source: Huang et al. 2019, arXiv 1811.06965.
    """
    for kind in (FORWARD, BACKWARD):
        for microbatch in range(number, pipeline.microbatches, counts[stage]):
            yield Action(kind, stage, microbatch)


def one_f_one_b(pipeline: Pipeline, counts: tuple[int, ...], stage: int, number: int) -> Iterator[Action]:
    """Yields forward actions of a replica until the first backward action can run, then one of each in turn.

    Source: PipeDream-Flush, Narayanan et al. 2021, arXiv 2006.09503; replicas as in PipeDream, Narayanan et
    al. 2019, section 3.2: those of a stage keep as many microbatches alive as devices follow from it on.
    """
    microbatches = range(number, pipeline.microbatches, counts[stage])
    n_warm_up = -(-sum(counts[stage:]) // counts[stage])
    for microbatch in microbatches[:n_warm_up]:
        yield Action(FORWARD, stage, microbatch)
    for at, microbatch in enumerate(microbatches):
        yield Action(BACKWARD, stage, microbatch)
        for later in microbatches[at + n_warm_up : at + n_warm_up + 1]:
            yield Action(FORWARD, stage, later)


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
    if pipeline.name == ZERO_BUBBLE:
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
