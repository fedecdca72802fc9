"""Makes the trials of an evaluation, one after the other."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from agent.bounds.lower_bound import bound_s
from agent.evaluation.failures import Failure, failure_of
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec, Task
from agent.placers.base import PlacementResult
from agent.placing.policies import make_placer
from agent.placing.request import DATA_PARALLEL
from agent.placing.trial_runner import TrialRunner
from agent.policy.seen import NOT_SEEN
from envs.placements.placement import Placement
from graphs.system.running_time import running_cpu_s, running_s

Outcome = tuple[Trial, Placement | None] | Failure
"""A trial and its placement (None: it is none), or why there is no trial."""


class Worker:
    """Makes the trials of an evaluation; keeps the present problem between them."""

    def __init__(self, spec: EvaluationSpec) -> None:
        self.spec = spec
        self._at = (-1, -1)
        self._runner = TrialRunner()

    def run(self, task: Task) -> tuple[Trial, Placement | None]:
        """Makes one trial; returns it and its placement, or None for data parallelism."""
        self._load(task)
        if task.placer == DATA_PARALLEL:
            return self._data_parallel(task), None
        found = self._place(task)
        trial = self._trial(task, found.step_time.total_s, found.feasible, found.evaluations)
        trial = replace(
            trial,
            wall_s=found.wall_s,
            cpu_s=found.cpu_s,
            improvements=found.improvements,
            lower_bound_s=max(trial.lower_bound_s, found.lower_bound_s),
            bubble_share=getattr(found.step_time, "bubble_share", 0.0),
        )
        return trial, found.placement

    def outcome(self, task: Task) -> Outcome:
        """Makes one trial; an exception makes it a failure."""
        try:
            return self.run(task)
        except Exception as error:
            return failure_of(self.spec.key(task), error)

    def _load(self, task: Task) -> None:
        if (task.graph, task.cluster) != self._at:
            self._at = (-1, -1)  # until all of it is loaded
            self._objective = self.spec.objective(
                self.spec.graphs[task.graph], self.spec.clusters[task.cluster]
            )
            self._bound_s = bound_s(self._objective)
            self._single_s, self._single_fits = self._objective.single_step
            self._at = (task.graph, task.cluster)

    def _place(self, task: Task) -> PlacementResult:
        given = self.spec.given.get(self.spec.key(task)[:3])
        if given is not None:
            return self._runner.score(self._objective, given)
        name, order = task.placer, task.order
        return self._runner.place(
            make_placer(name, self.spec.policy, order),
            self._objective,
            self.spec.budget,
            order=order,
            seed=task.seed,
        )

    def _data_parallel(self, task: Task) -> Trial:
        began, cpu_began = running_s(), running_cpu_s()
        found = self._objective.data_parallel()
        wall_s, cpu_s = running_s() - began, running_cpu_s() - cpu_began
        trial = self._trial(task, found.seconds_per_batch, found.fits, found.evaluations)
        return replace(trial, wall_s=wall_s, cpu_s=cpu_s)

    def _trial(self, task: Task, step_time_s: float, feasible: bool, evaluations: int) -> Trial:
        """A trial that took no time."""
        problem, pipeline = self._objective.problem, self.spec.pipeline
        columns: dict[str, Any] = {}
        if pipeline:
            columns = {"pipeline": pipeline.schedule, "microbatches": pipeline.microbatches}
            columns["throughput_per_s"] = pipeline.microbatches / step_time_s
        return Trial(
            graph=problem.graph.name,
            family=problem.graph.family,
            cluster=problem.cluster.name,
            order=task.order,
            placer=task.placer,
            seed=task.seed,
            step_time_s=float(step_time_s),
            feasible=feasible,
            evaluations=evaluations,
            wall_s=0.0,
            lower_bound_s=self._bound_s,
            single_s=self._single_s,
            single_fits=self._single_fits,
            seen=self.spec.seen.get(problem.graph.name, NOT_SEEN),
            granularity=self.spec.granularity,
            **columns,
        )
