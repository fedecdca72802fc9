"""Makes the trials of an evaluation on a Ray cluster, as `agent.evaluation.processes` does here."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Sequence
from typing import Any

import ray
from ray.exceptions import GetTimeoutError, RayError

from agent.contexts.workers.ray_cluster import ray_cluster
from agent.evaluation.failures import Failure
from agent.evaluation.processes import MAX_TRIES
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.worker import Outcome, Worker

POLL_S = 1.0
"""Longest wait before it is seen whether a trial takes too long."""


@ray.remote(num_cpus=1, max_restarts=0)
class TrialActor:
    """Makes one trial at a time in a process of the cluster."""

    def __init__(self, spec: EvaluationSpec) -> None:
        self._worker = Worker(spec)

    def outcome(self, task: Task) -> Outcome:
        """Makes a trial; an exception makes it a failure."""
        return self._worker.outcome(task)


class _Slot:
    """One process of the cluster, which is started when it is needed, also after a death."""

    def __init__(self, spec: Any, timeout_s: float | None) -> None:
        self._spec, self._timeout_s = spec, timeout_s
        self._actor: Any = None
        self.deadline_s = float("inf")

    def give(self, task: Task) -> Any:
        """Begins a trial; returns what its outcome can be had from."""
        if self._actor is None:
            self._actor = TrialActor.remote(self._spec)  # type: ignore[attr-defined]
        if self._timeout_s is not None:
            self.deadline_s = time.monotonic() + self._timeout_s
        return self._actor.outcome.remote(task)

    @property
    def lateness(self) -> str:
        """Says that a trial took too long."""
        return f"no result in {self._timeout_s:g} s"

    def kill(self) -> None:
        """Ends the process, if there is one."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


def run_trials_on_ray(
    spec: EvaluationSpec, tasks: Sequence[Task], *, jobs: int, timeout_s: float | None
) -> Generator[tuple[Task, Outcome], None, None]:
    """Makes trials in processes of a Ray cluster, in any order, with the same results as in one process.

    A trial whose process died or took too long is tried once more in another process.

    Args:
        jobs: number of processes, of one core each; a cluster with fewer free cores runs as many as it can.
        timeout_s: seconds after which the process of a trial is killed; None = never. The start of the
            process counts.

    Yields:
        Each task, and what came of it. Close the generator to end the processes.

    Raises:
        RayUnavailableError: Ray is not installed, or the cluster cannot be reached.
    """
    if not tasks:
        return
    with ray_cluster(jobs):
        given = ray.put(spec)
        yield from _run(spec, tasks, [_Slot(given, timeout_s) for _ in range(min(jobs, len(tasks)))])


def _run(
    spec: EvaluationSpec, tasks: Sequence[Task], slots: Sequence[_Slot]
) -> Generator[tuple[Task, Outcome], None, None]:
    waiting = deque((task, 1) for task in tasks)
    busy: dict[Any, tuple[_Slot, Task, int]] = {}
    free = list(slots)
    while waiting or busy:
        while free and waiting:
            slot, (task, tries) = free.pop(), waiting.popleft()
            busy[slot.give(task)] = slot, task, tries
        ended, _ = ray.wait(list(busy), num_returns=1, timeout=POLL_S)
        late = [each for each, (slot, *_) in busy.items() if slot.deadline_s < time.monotonic()]
        for reference in {*ended, *late}:
            slot, task, tries = busy.pop(reference)
            free.append(slot)
            outcome, reason = _outcome(reference)
            if outcome is not None:
                yield task, outcome
                continue
            slot.kill()
            if tries < MAX_TRIES:
                waiting.append((task, tries + 1))
            else:
                yield task, Failure(spec.key(task), tries, reason or slot.lateness)


def _outcome(reference: Any) -> tuple[Outcome | None, str]:
    """Returns the result of a trial, or None where its process died or took too long, and the reason."""
    try:
        return ray.get(reference, timeout=0), ""
    except GetTimeoutError:
        return None, ""
    except RayError as error:
        return None, f"its process died ({type(error).__name__})"
