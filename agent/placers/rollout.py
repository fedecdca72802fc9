"""The rollout algorithm: truncated rollouts of a simple rule decide alone, with nothing learned."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.completion import complete_placement
from agent.placers.fill import first_feasible
from agent.placers.units import per_unit
from envs.mdp.episodes import EpisodeBatch
from envs.mdp.features import HORIZONS, column
from envs.problem import InfeasibleError, Problem
from graphs.op_graph import FloatArray, IntArray

STEP_TIME = column(f"rollout_step_time_{HORIZONS[-1]}_over_least")
MEAN_FINISH = column(f"rollout_mean_finish_{HORIZONS[-1]}_over_least")
"""Columns of the observation: step time and mean finish at the furthest horizon."""


@placer("rollout")
def rollout(search: SearchState, rng: np.random.Generator) -> None:
    """Places ops in program order, each where the step is shortest after a simple rule placed the next.

    Source: the rollout algorithm of Bertsekas, Tsitsiklis and Wu 1997, truncated as in
    `envs.mdp.rollout_features`; ties go to the earlier mean finish.
    """
    problem = search.problem

    def plan(limit_bytes: FloatArray) -> IntArray:
        return per_unit(
            problem.graph, complete_placement(problem, _roll_out(problem.with_memory(limit_bytes)))
        )

    first_feasible(search, plan)


def _roll_out(problem: Problem) -> IntArray:
    """Device of each op, int (n_ops,); -1 from the first op on that no device has memory for."""
    nothing_placed = np.full(problem.graph.n_ops, -1)
    if not problem.graph.is_compute.any():
        return nothing_placed
    try:
        batch = EpisodeBatch([problem], 1)
    except InfeasibleError:
        return nothing_placed
    batch.begin(0, 0, 0, np.random.default_rng(0))
    done = False
    while not done:
        usable = np.flatnonzero(batch.observation.mask[0])
        features = batch.observation.devices[0, usable]
        best = usable[np.lexsort((features[:, MEAN_FINISH], features[:, STEP_TIME]))[:1]]
        done = bool(batch.step(best)[1][0])
    return batch.result(0).device_of
