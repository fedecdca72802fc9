"""A lower bound on the step time of every pipeline that a graph can be cut into."""

from __future__ import annotations

import numpy as np

from agent.bounds.lower_bound import device_weights, heads_and_tails
from envs.pipeline.groups import sharded
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.stages import phases_of


def pipeline_bound_s(objective: PipelineObjective) -> float:
    """Lower bound on the step time of every pipeline that a graph can be cut into, in seconds.

    The greatest of
    - the critical path of one microbatch, each op on its fastest device;
    - the work of all microbatches, spread over all devices: with any device weights that sum to 1, the sum
      over ops of the least weighted seconds is at most the mean load, which is at most the step;
    - the work of a placement unit on its fastest device, in all microbatches of a replica.
    """
    problem, phase, pipeline = objective.problem, phases_of(objective.problem.graph), objective.pipeline
    n_replicas = int(pipeline.replicas)
    problem = sharded(problem, n_replicas) if pipeline.shard_optimizer else problem
    seconds = problem.op_seconds
    times = np.where(phase == 2, 1, pipeline.microbatches)
    head, tail = heads_and_tails(problem)
    path_s = float((head + seconds.min(axis=1) + tail).max())
    every = seconds * times[:, None]
    work_s = float((every * device_weights(every)).min(axis=1).sum())
    unit_of, n_units = problem.graph.unit_of, len(problem.graph.units)
    of_unit = np.zeros((n_units, problem.n_devices))
    np.add.at(of_unit, unit_of, np.where(phase == 2, 1.0, 1.0 / n_replicas)[:, None] * every)
    return max(path_s, work_s, float(of_unit.min(axis=1).max()))
