"""The choice of a pipeline: its schedule and, of a batch that is split, the number of microbatches."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from agent.placers.base import Budget
from agent.placers.pipeline.search import check_pipeline
from agent.placing.trial_runner import PipelineRun, TrialRunner
from envs.pipeline.pipeline import AUTO, CHOSEN_FROM, MAX_MICROBATCHES, Pipeline, PipelineError
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import InfeasibleError, Problem
from graphs.system.numbers import in_ms

MOST_COUNTS, PER_DEVICE = 5, 4
"""Numbers of microbatches that are tried at most; they are near to so many for each device."""


class Tried(NamedTuple):
    """A pipeline that was tried, and the best plan that was found for it."""

    pipelined: PipelinedProblem
    run: PipelineRun

    def __str__(self) -> str:
        pipeline, memory = self.pipelined.pipeline, "" if self.run.fits else ", out of memory"
        name = f"{pipeline.schedule} with {pipeline.microbatches} microbatches"
        return f"{name}: {in_ms(self.run.step_time_s)}{memory}"


def counts_to_try(batch: int, n_devices: int) -> list[int]:
    """Lists the divisors of a batch that are nearest to `PER_DEVICE` microbatches a device, ascending."""
    divisors = [count for count in range(1, min(batch, MAX_MICROBATCHES) + 1) if batch % count == 0]
    divisors.sort(key=lambda count: abs(math.log(count / (PER_DEVICE * n_devices))))
    return sorted(divisors[:MOST_COUNTS])


def try_pipelines(
    runner: TrialRunner,
    wanted: Pipeline,
    counts: Sequence[int],
    problem_of: Callable[[int], Problem],
    placer: str,
    budget: Budget,
    seed: int,
) -> list[Tried]:
    """Tries the schedules of a pipeline with some numbers of microbatches, in equal shares of a budget.

    If there are several, each is reported, and those that the graph or the cluster cannot run are left out.

    Args:
        problem_of: makes the problem of a number of microbatches.

    Returns:
        First what fits, then what has the shortest step.

    Raises:
        PipelineError, InfeasibleError: none can run.
    """
    schedules = CHOSEN_FROM if wanted.schedule == AUTO else (wanted.schedule,)
    pipelines = [replace(wanted, schedule=each, microbatches=count) for count in counts for each in schedules]
    found, refused = list[Tried](), list[PipelineError | InfeasibleError]()
    for number, pipeline in enumerate(pipelines, start=1):
        try:
            pipelined = PipelinedProblem(problem_of(pipeline.microbatches), pipeline)
            check_pipeline(pipelined)
            share = budget.shared(len(pipelines))
            found.append(Tried(pipelined, runner.run_pipeline(placer, pipelined, share, None, seed=seed)))
        except (PipelineError, InfeasibleError) as error:
            refused.append(error)
            continue
        if len(pipelines) > 1:
            print(f"pipeline {number} of {len(pipelines)}: {found[-1]}", file=sys.stderr)
    if not found:
        raise refused[0]
    return sorted(found, key=lambda each: (not each.run.fits, each.run.step_time_s))
