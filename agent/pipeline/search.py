"""A run of a placer of pipelines: the best cuts so far; and a lower bound on what it can find."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from agent.bounds.lower_bound import device_weights, heads_and_tails
from agent.placers.improvements import Improvements
from agent.placers.state import Budget, PlacementResult, SearchState, Strategy
from envs.objective import OVER_BYTES, TOTAL_S, Objective
from envs.pipeline.chain import Cuts
from envs.pipeline.groups import sharded
from envs.pipeline.objective import PipelineObjective
from envs.pipeline.stages import phases_of

DECAY = 0.98
"""Share of the longest simulation that counts at the next one."""


class PipelineSearch(SearchState):
    """State of one run of a placer of pipelines, which scores cuts; of equal ones, the least recomputed wins.

    Attributes:
        pipelined: the objective; `problem` is that of its first replica.
        best_cuts: the best pipeline so far.
        can_recompute: recomputation may help, as memory binds, and is allowed.
    """

    def __init__(self, objective: Objective, budget: Budget) -> None:
        """Begins the run; the clock starts.

        Raises:
            PipelineError: the cluster or the graph cannot run the pipeline.
        """
        assert isinstance(objective, PipelineObjective), "the objective of a pipeline"
        objective.check()
        super().__init__(objective, budget)
        self.pipelined, self.problem = objective, objective.placed
        self.best_cuts: Cuts | None = None
        self._rank: tuple[tuple[float, float], int] = ((np.inf, np.inf), 0)
        self.can_recompute = False
        self._scores: dict[Cuts, tuple[float, float]] = {}
        self._most_s = 0.0  # seconds of a simulation, at most, lately

    @property
    def left(self) -> int:
        """Evaluations that may still be spent; 0 too where another and that of the result end too late."""
        is_late = self.best is not None and self.seconds_left <= 2 * self._most_s
        return 0 if is_late else super().left

    def score_cuts(self, cuts: Cuts, *, until_s: float = np.inf) -> tuple[float, float]:
        """Simulates a pipeline, unless it was before; keeps it if it is the best.

        Args:
            until_s: longest step that is of interest; beyond it, the memory is not found.

        Returns:
            Bytes over the memory limits, infinite where they are not found, and step time in seconds,
            infinite where no step ends.
        """
        self.spend(1)
        before, began = self._scores.get(cuts), self.elapsed_s
        if before is not None and (before[OVER_BYTES] < np.inf or before[TOTAL_S] > until_s):
            return before
        stages = self.pipelined.stages(cuts)
        score = self._scores[cuts] = self.pipelined.pipelined.score(stages, until_s=until_s)
        self._most_s = max(DECAY * self._most_s, self.elapsed_s - began)
        over_bytes, total_s = score
        if total_s <= until_s:
            self.can_recompute |= over_bytes > 0 and self.pipelined.pipeline.may_recompute
            rank = score, sum(cuts.recomputed)
            if rank < self._rank:
                self.best_cuts, self._rank = cuts, rank
            self.keep(stages.device_of, total_s, over_bytes)
        return score

    def result(self) -> PlacementResult:
        result = super().result()
        assert self.best_cuts is not None, "at least one plan was scored"
        return replace(result, placement=self.pipelined.stages(self.best_cuts).placement)

    @classmethod
    def place(
        cls, strategy: Strategy, objective: Objective, budget: Budget, rng: np.random.Generator
    ) -> PlacementResult:
        """Runs a strategy on each group of devices for the first replica; returns the best outcome."""
        assert isinstance(objective, PipelineObjective), "the objective of a pipeline"
        layouts = objective.layouts()
        share = budget.shared(len(layouts))
        results = [super(PipelineSearch, cls).place(strategy, layout, share, rng) for layout in layouts]
        improvements, evaluations, wall_s = Improvements(), 0, 0.0
        for result in results:
            improvements.add_later(result.improvements, evaluations, wall_s)
            evaluations, wall_s = evaluations + result.evaluations, wall_s + result.wall_s
        return replace(
            min(results, key=lambda result: (not result.feasible, result.step_time.total_s)),
            improvements=improvements.all(),
            evaluations=evaluations,
            wall_s=wall_s,
            cpu_s=sum(result.cpu_s for result in results),
        )


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
