"""Processes of a Ray cluster that handle one request at a time, as `WorkerProcess` does on this machine."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from typing import Any, Generic

import ray
from ray.exceptions import GetTimeoutError, RayError

from agent.contexts.engine import ray_cluster
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.worker import Outcome, Worker, run_in_processes
from graphs.system.worker_process import Answer, Death, Request

POLL_S = 1.0
"""Longest wait before it is seen whether a request takes too long."""


@ray.remote(max_restarts=0)
class _Host:
    """Makes answers in a process of the cluster, in the folder that this process is in."""

    def __init__(self, handler: Callable[[Any], Any], folder: str) -> None:
        os.chdir(folder)
        self._handler = handler

    def answer(self, request: Any) -> Any:
        """Makes the answer to a request."""
        return self._handler(request)


class RayProcess(Generic[Request, Answer]):
    """Handles one request at a time in a process, which is started when it is needed, also after a death.

    Args:
        handler: makes the answer to a request, never None; it is sent to the process, as what it is or as
            what `ray.put` returned for it.
        timeout_s: seconds after which a request has taken too long, the start of the process included; None =
            never.
        n_cores, n_gpus: what the process takes of the cluster.
    """

    def __init__(
        self, handler: Any, timeout_s: float | None = None, n_cores: int = 1, n_gpus: int = 0
    ) -> None:
        self._handler, self._n_cores, self._n_gpus = handler, n_cores, n_gpus
        self._timeout_s = math.inf if timeout_s is None else timeout_s
        self._actor: Any = None
        self.reference: Any = None
        self._deadline_s = math.inf

    def give(self, request: Request) -> None:
        """Hands over a request; the one before has been answered."""
        if self._actor is None:
            host = _Host.options(num_cpus=self._n_cores, num_gpus=self._n_gpus)  # type: ignore[attr-defined]
            self._actor = host.remote(self._handler, os.getcwd())
        self._deadline_s = time.monotonic() + self._timeout_s
        self.reference = self._actor.answer.remote(request)

    def answer(self) -> Answer | Death | None:
        """Returns the answer, or None where there is none so far."""
        try:
            return ray.get(self.reference, timeout=0)
        except GetTimeoutError:
            if time.monotonic() < self._deadline_s:
                return None
            death = Death(f"no result in {self._timeout_s:g} s")
        except RayError as error:
            death = Death(f"its process died ({type(error).__name__})")
        self.kill()
        return death

    def kill(self) -> None:
        """Ends the process at once, if there is one."""
        if self._actor is not None:
            ray.kill(self._actor)
            self._actor = None


def ray_answers_of(
    busy: Collection[RayProcess[Request, Answer]],
) -> Iterator[tuple[RayProcess[Request, Answer], Answer | Death]]:
    """Waits for a moment until a process has an answer; yields the answers, of which there may be none."""
    ray.wait([process.reference for process in busy], num_returns=1, timeout=POLL_S)
    for process in list(busy):
        if (answer := process.answer()) is not None:
            yield process, answer


def run_trials_on_ray(
    spec: EvaluationSpec, tasks: Sequence[Task], *, jobs: int, timeout_s: float | None
) -> Generator[tuple[Task, Outcome], None, None]:
    """Makes trials as `run_trials` does, but in processes of a Ray cluster, of one core each.

    Args:
        jobs: number of processes; a cluster with fewer free cores runs as many as it can.
        timeout_s: seconds after which the process of a trial is killed, its start included; None = never.

    Raises:
        RayUnavailableError: Ray is not installed, or the cluster cannot be reached.
    """
    if not tasks:
        return
    with ray_cluster(jobs):
        handler = ray.put(Worker(spec).outcome)
        processes = [RayProcess[Task, Outcome](handler, timeout_s) for _ in range(min(jobs, len(tasks)))]
        yield from run_in_processes(spec, tasks, processes, ray_answers_of)
