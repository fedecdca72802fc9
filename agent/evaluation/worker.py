"""Makes the trials of an evaluation: in this process, or in several that may die or hang."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any

from agent.bounds.lower_bound import bound_s
from agent.evaluation.answers import PlacedStep
from agent.evaluation.results import Failure, Trial, failure_of
from agent.evaluation.spec import EvaluationSpec, Task
from agent.placers.base import PlacementResult
from agent.placing.request import DATA_PARALLEL
from agent.placing.trial_runner import TrialRunner, make_placer
from agent.policy.serialization import NOT_SEEN
from graphs.system.running_time import running_cpu_s, running_s
from graphs.system.worker_process import Death, Process, WorkerProcess, answers_of

MAX_TRIES = 2
"""Tries of a trial whose process dies or hangs."""

Outcome = tuple[Trial, PlacedStep | None] | Failure
"""A trial and its placement (None: it is none), or why there is no trial."""
Outcomes = Generator[tuple[Task, Outcome], None, None]
TrialMaker = Callable[..., Outcomes]
"""Makes trials here or elsewhere, with the arguments of `run_trials`."""


class Worker:
    """Makes the trials of an evaluation; keeps the present problem between them."""

    def __init__(self, spec: EvaluationSpec) -> None:
        self.spec = spec
        self._at = (-1, -1)
        self._runner = TrialRunner()

    def outcome(self, task: Task) -> Outcome:
        """Makes one trial; an exception makes it a failure."""
        try:
            return self.run(task)
        except Exception as error:
            return failure_of(self.spec.key(task), error)

    def run(self, task: Task) -> tuple[Trial, PlacedStep | None]:
        """Makes one trial; returns it and its placement, or None for data parallelism."""
        self._load(task)
        if task.placer == DATA_PARALLEL:
            return self._data_parallel(task), None
        result = self._place(task)
        trial = self._trial(
            task,
            result.step_time.total_s,
            result.feasible,
            result.evaluations,
            wall_s=result.wall_s,
            cpu_s=result.cpu_s,
            improvements=result.improvements,
            lower_bound_s=max(self._bound_s, result.lower_bound_s),
            bubble_share=getattr(result.step_time, "bubble_share", 0.0),
        )
        return trial, PlacedStep(result.placement, result.step_time)

    def _load(self, task: Task) -> None:
        if (task.graph, task.cluster) == self._at:
            return
        self._at = (-1, -1)  # until all of it is loaded
        graph, cluster = self.spec.graphs[task.graph], self.spec.clusters[task.cluster]
        self._objective = self.spec.objective(graph, cluster)
        self._bound_s = bound_s(self._objective)
        self._single_s, self._single_fits = self._objective.single_step
        self._at = (task.graph, task.cluster)

    def _place(self, task: Task) -> PlacementResult:
        placement = self.spec.given.get(self.spec.key(task)[:3])
        if placement is not None:
            return self._runner.score(self._objective, placement)
        placer = make_placer(task.placer, self.spec.policy, task.order, self._objective.kind)
        return self._runner.place(placer, self._objective, self.spec.budget, order=task.order, seed=task.seed)

    def _data_parallel(self, task: Task) -> Trial:
        began, cpu_began = running_s(), running_cpu_s()
        step = self._objective.data_parallel()
        wall_s, cpu_s = running_s() - began, running_cpu_s() - cpu_began
        step_s, evaluations = step.seconds_per_batch, step.evaluations
        return self._trial(task, step_s, step.fits, evaluations, wall_s=wall_s, cpu_s=cpu_s)

    def _trial(
        self, task: Task, step_time_s: float, feasible: bool, evaluations: int, **others: Any
    ) -> Trial:
        problem = self._objective.problem
        columns: dict[str, Any] = {
            "graph": problem.graph.name,
            "family": problem.graph.family,
            "cluster": problem.cluster.name,
            "order": task.order,
            "placer": task.placer,
            "seed": task.seed,
            "step_time_s": float(step_time_s),
            "feasible": feasible,
            "evaluations": evaluations,
            "lower_bound_s": self._bound_s,
            "single_s": self._single_s,
            "single_fits": self._single_fits,
            "seen": self.spec.seen.get(problem.graph.name, NOT_SEEN),
            "granularity": self.spec.granularity,
        }
        return Trial(**columns | self._objective.columns(step_time_s) | others)


def run_trials(
    spec: EvaluationSpec, tasks: Sequence[Task], *, jobs: int, timeout_s: float | None
) -> Outcomes:
    """Makes trials, in any order; an exception in one of them makes it a `Failure`.

    A trial whose process died or hung is tried once more in another process. Each process has one trial at a
    time, so that it is known which one to blame.

    Args:
        jobs: number of processes. One job runs in this process, if it has no timeout.
        timeout_s: seconds after which the process of a trial is killed; None = never.

    Yields:
        Each task, and what came of it. Close the generator to end the processes.
    """
    handler = Worker(spec).outcome
    if jobs > 1 or timeout_s is not None:
        processes = [WorkerProcess(handler, timeout_s) for _ in range(min(jobs, len(tasks)))]
        yield from run_in_processes(spec, tasks, processes, answers_of)
    else:
        yield from ((task, handler(task)) for task in tasks)


def run_in_processes(
    spec: EvaluationSpec,
    tasks: Sequence[Task],
    processes: Sequence[Process[Task, Outcome]],
    answers_of: Callable[[Collection[Any]], Iterable[tuple[Any, Outcome | Death]]],
) -> Outcomes:
    """Makes trials in processes, as `run_trials` does, and ends the processes.

    Args:
        answers_of: waits for the processes given, and yields those that have an answer, with it.
    """
    waiting = deque((task, 1) for task in tasks)
    busy: dict[Process[Task, Outcome], tuple[Task, int]] = {}
    outcomes: list[tuple[Task, Outcome]] = []
    try:
        while waiting or busy or outcomes:
            for process in processes:
                if process not in busy and waiting:
                    busy[process] = waiting.popleft()
                    process.give(busy[process][0])
            # All processes have work before the results of the last trials are written.
            yield from outcomes
            outcomes = []
            for process, answer in answers_of(busy):
                task, tries = busy.pop(process)
                if not isinstance(answer, Death):
                    outcomes.append((task, answer))
                elif tries < MAX_TRIES:
                    waiting.append((task, tries + 1))
                else:
                    outcomes.append((task, Failure(spec.key(task), tries, answer.reason)))
    finally:
        for process in processes:
            process.kill()
