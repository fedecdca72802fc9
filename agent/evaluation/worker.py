"""Makes the trials of an evaluation, one after the other."""

from __future__ import annotations

from agent.evaluation.bounds import lower_bound_s
from agent.evaluation.failures import Failure, failure_of
from agent.evaluation.policies import make_placer
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.trial_runner import TrialRunner
from agent.placers.base import PlacementResult
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from graphs.op_graph import IntArray

Outcome = tuple[Trial, IntArray] | Failure
"""A trial and the device of each op, or why there is none."""


class Worker:
    """Makes the trials of an evaluation; keeps the present problem between them."""

    def __init__(self, spec: EvaluationSpec) -> None:
        self.spec = spec
        self._at = (-1, -1)
        self._runner = TrialRunner()

    def run(self, task: Task) -> tuple[Trial, IntArray]:
        """Make one trial; returns it and the device of each op."""
        self._load(task)
        found = self._place(task)
        return self._trial(task, found), found.placement.device_of

    def attempt(self, task: Task) -> Outcome:
        """Make one trial; an exception makes it a failure."""
        try:
            return self.run(task)
        except Exception as error:
            return failure_of(self.spec.key(task), error)

    def _load(self, task: Task) -> None:
        if (task.graph, task.cluster) != self._at:
            self._at = (-1, -1)  # until all of it is loaded
            self._problem = Problem(self.spec.graphs[task.graph], self.spec.clusters[task.cluster])
            self._bound_s = lower_bound_s(self._problem)
            n_groups = self.spec.coarsen
            self._coarse = None if n_groups is None else coarse_problem(self._problem, n_groups)
            self._at = (task.graph, task.cluster)

    def _place(self, task: Task) -> PlacementResult:
        given = self.spec.given.get(self.spec.key(task)[:3])
        if given is not None:
            return self._runner.score(self._problem, given)
        name, order = task.placer, task.order
        return self._runner.place(
            make_placer(name, self.spec.policy, order),
            self._problem,
            self.spec.budget,
            order=order,
            seed=task.seed,
            coarse=self._coarse,
        )

    def _trial(self, task: Task, found: PlacementResult) -> Trial:
        problem = self._problem
        return Trial(
            graph=problem.graph.name,
            family=problem.graph.family,
            cluster=problem.cluster.name,
            order=task.order,
            placer=task.placer,
            seed=task.seed,
            step_time_s=float(found.step_time.total_s),
            feasible=found.feasible,
            evaluations=found.evaluations,
            wall_s=found.wall_s,
            lower_bound_s=self._bound_s,
            single_s=problem.scale_s,
            seen=problem.graph.name in self.spec.seen,
            granularity=self.spec.granularity,
        )
