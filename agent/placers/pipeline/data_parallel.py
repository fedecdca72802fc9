"""Data parallelism beside a pipeline: replicas share the microbatches, and average their gradients."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np

from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from envs.simulator.data_parallel import data_parallel_steps


class DataParallelPipeline(NamedTuple):
    """A step of as many microbatches as a step of the pipeline.

    Attributes:
        step_s: seconds of the step; of replicas with whole batches of their own, for one of these batches.
        n_replicas: devices that compute.
        fits: whether each has the memory of the whole model.
        evaluations: steps that were simulated.
        own_batches: whether each device computes a whole batch of its own.
    """

    step_s: float
    n_replicas: int
    fits: bool
    evaluations: int
    own_batches: bool = False


def simulate_data_parallel_pipeline(
    pipelined: PipelinedProblem, whole: Problem | None = None
) -> DataParallelPipeline:
    """Simulates data parallelism with accumulated gradients, on the devices that make the step shortest.

    If the whole batch is given as well, and a batch of their own for each device is faster, it is that.
    Every replica computes its microbatches one after the other and adds their gradients up; the last of them
    overlaps with the all-reduce, as `no_sync` of PyTorch has it. The slowest replica bounds the step.
    """
    problem, arrays, count = pipelined.problem, pipelined.arrays, pipelined.pipeline.microbatches
    runs = (arrays.phase == 0) | (arrays.phase == 1)
    seconds = problem.op_seconds[runs]
    gap_s = problem.cluster.op_gap_s
    computes_s = np.where(seconds > 0, seconds + gap_s, 0.0).sum(axis=0)
    adds_s = np.where(arrays.accumulate_s > 0, arrays.accumulate_s + gap_s, 0.0).sum(axis=0)
    steps = data_parallel_steps(problem)
    found = []
    for step in steps:
        each_s = float((computes_s + adds_s)[list(step.devices)].max())
        before_s = (math.ceil(count / step.n_replicas) - 1) * each_s
        whole_s = before_s + step.step_s
        found.append(DataParallelPipeline(whole_s, step.n_replicas, step.fits, step.evaluations))
    for step in () if whole is None else data_parallel_steps(whole):
        own = step.seconds_per_batch, step.n_replicas, step.fits, step.evaluations
        found.append(DataParallelPipeline(*own, own_batches=True))
    return min(found, key=lambda each: (not each.fits, each))
