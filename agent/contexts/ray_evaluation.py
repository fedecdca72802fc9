"""Makes the trials of an evaluation on a Ray cluster, as `agent.evaluation.worker` does here."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from agent.contexts.workers.ray_cluster import ray_cluster
from agent.evaluation.spec import EvaluationSpec, Task
from agent.evaluation.worker import Outcome, Worker, run_in_processes


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
        import ray

        from agent.contexts.workers.ray_process import RayProcess, ray_answers_of

        handler = ray.put(Worker(spec).outcome)
        processes = [RayProcess[Task, Outcome](handler, timeout_s) for _ in range(min(jobs, len(tasks)))]
        yield from run_in_processes(spec, tasks, processes, ray_answers_of)
