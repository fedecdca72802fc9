"""Makes the trials of an evaluation, in this process or in several."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager

from agent.evaluation.bounds import lower_bound_s
from agent.evaluation.policies import make_placer
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.trial_runner import TrialRunner
from agent.placers.base import PlacementResult
from envs.coarse_problem import coarse_problem
from envs.problem import Problem
from graphs.op_graph import IntArray

Outcome = tuple[Task, tuple[Trial, IntArray]]
RunAll = Callable[[Iterable[Task]], Iterator[Outcome]]


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

    def _load(self, task: Task) -> None:
        if (task.graph, task.cluster) != self._at:
            self._at = (task.graph, task.cluster)
            self._problem = Problem(self.spec.graphs[task.graph], self.spec.clusters[task.cluster])
            self._bound_s = lower_bound_s(self._problem)
            n_groups = self.spec.coarsen
            self._coarse = None if n_groups is None else coarse_problem(self._problem, n_groups)

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
        )


@contextmanager
def runner(spec: EvaluationSpec, jobs: int) -> Iterator[RunAll]:
    """Give a function that makes trials: here, or in `jobs` processes, which end with the context."""
    if jobs == 1:
        worker = Worker(spec)
        yield lambda tasks: ((task, worker.run(task)) for task in tasks)
        return
    with multiprocessing.get_context("spawn").Pool(jobs, _start_process, (spec,)) as pool:
        yield lambda tasks: pool.imap_unordered(_run_in_process, tasks)


def _start_process(spec: EvaluationSpec) -> None:
    global _process_worker
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _process_worker = Worker(spec)


def _run_in_process(task: Task) -> Outcome:
    return task, _process_worker.run(task)


_process_worker: Worker
