"""Lower bound on the pipelined step of every placement."""

from __future__ import annotations

import numpy as np

from agent.bounds.lower_bound import device_weights, heads_and_tails
from envs.pipeline.simulate import PipelinedProblem


def pipeline_bound_s(pipelined: PipelinedProblem) -> float:
    """Lower bound on the step time of every pipeline that a graph can be cut into, in seconds.

    The greatest of
    - the critical path of one microbatch, each op on its fastest device;
    - the work of all microbatches, spread over all devices: with any device weights that sum to 1, the sum
      over ops of the least weighted seconds is at most the mean load, which is at most the step;
    - the work of a placement unit on its fastest device, in all microbatches.
    """
    problem, phase = pipelined.problem, pipelined.arrays.phase
    seconds = problem.op_seconds
    times = np.where(phase == 2, 1, pipelined.pipeline.microbatches)
    head, tail = heads_and_tails(problem)
    path_s = float((head + seconds.min(axis=1) + tail).max())
    every = seconds * times[:, None]
    work_s = float((every * device_weights(every)).min(axis=1).sum())
    unit_of, n_units = problem.graph.unit_of, len(problem.graph.units)
    of_unit = np.zeros((n_units, problem.n_devices))
    np.add.at(of_unit, unit_of, every)
    return max(path_s, work_s, float(of_unit.min(axis=1).max()))
