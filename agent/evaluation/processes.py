"""Makes the trials of an evaluation: in this process, or in several that may die or hang."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Generator, Iterable, Sequence
from typing import Any, Protocol

from agent.evaluation.failures import Failure
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.worker import Outcome, Worker
from graphs.system.worker_process import Death, Process, WorkerProcess, answers_of

MAX_TRIES = 2
"""Tries of a trial whose process dies or hangs."""


class TrialMaker(Protocol):
    """Interface to what makes trials: `run_trials`, or the same elsewhere."""

    def __call__(
        self, spec: EvaluationSpec, tasks: Sequence[Task], *, jobs: int, timeout_s: float | None
    ) -> Generator[tuple[Task, Outcome], None, None]:
        """Makes trials, as `run_trials` does."""


def run_trials(
    spec: EvaluationSpec, tasks: Sequence[Task], *, jobs: int, timeout_s: float | None
) -> Generator[tuple[Task, Outcome], None, None]:
    """Makes trials, in any order; an exception in one of them makes it a `Failure`.

    A trial whose process died or hung is tried once more in another process. Each process has one trial at a
    time, so that it is known which one to blame.

    Args:
        jobs: number of processes. One job runs in this process, if it has no timeout.
        timeout_s: seconds after which the process of a trial is killed; None = never.

    Yields:
        Each task, and what came of it. Close the generator to end the processes.
    """
    if jobs > 1 or timeout_s is not None:
        handler = Worker(spec).outcome
        processes = [WorkerProcess(handler, timeout_s) for _ in range(min(jobs, len(tasks)))]
        yield from run_in_processes(spec, tasks, processes, answers_of)
    else:
        worker = Worker(spec)
        for task in tasks:
            yield task, worker.outcome(task)


def run_in_processes(
    spec: EvaluationSpec,
    tasks: Sequence[Task],
    processes: Sequence[Process[Task, Outcome]],
    answers_of: Callable[[Collection[Any]], Iterable[tuple[Any, Outcome | Death]]],
) -> Generator[tuple[Task, Outcome], None, None]:
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
