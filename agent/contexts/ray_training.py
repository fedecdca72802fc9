"""A training by several workers on a Ray cluster; this process starts them, shows their output and waits."""

from __future__ import annotations

import io
import socket
import sys
import time
import traceback
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import ray
from ray.util.queue import Queue

from agent.contexts.distributed import ONE_SIGNAL_S, Resolve, check_workers_fit, train_with_others
from agent.contexts.engine import ray_cluster
from agent.contexts.process_group import WorkerGoneError, WorkerLostError, joined
from agent.contexts.ray_process import RayProcess
from agent.learn.config import TrainConfig
from agent.learn.workers import FIRST
from graphs.system.errors import InputError, shown
from graphs.system.interrupts import handled_by
from graphs.system.worker_process import Death

MAX_RESTARTS = 10
"""New starts of the workers after one of them was killed."""
NAME = "train_agent.py"
POLL_S = 0.2


@dataclass(frozen=True)
class _Job:
    """The job of a worker.

    Attributes:
        said: what workers print, each with `stdout` or `stderr`.
        stops: not empty if the workers are to stop after their update.
        rank, size, address: as `joined` takes them.
    """

    config: TrainConfig
    folder: Path
    resume: bool
    said: Queue
    stops: Queue
    size: int
    address: str = ""
    rank: int = FIRST


class _Relay(io.TextIOBase):
    """A text stream whose other end is the process that started the workers."""

    def __init__(self, said: Queue, stream: str) -> None:
        self._said, self._stream = said, stream

    def write(self, text: str) -> int:
        """Passes a text on."""
        self._said.put((self._stream, text))
        return len(text)


def train_on_ray(resolve: Resolve, n_workers: int) -> int:
    """Trains on the cluster; if a worker is killed, all restart from the last checkpoint.

    SIGINT and SIGTERM let the workers finish their update, save a checkpoint and end. All nodes of the
    cluster share the file system that the folder of the run is on.

    Returns:
        The exit code.

    Raises:
        InputError: what `resolve` raises, settings that the workers cannot share, or no Ray.
    """
    config, folder, resume = resolve()
    check_workers_fit(config, n_workers)
    with ray_cluster(n_workers):
        said, stops = (Queue(actor_options={"num_cpus": 0}) for _ in range(2))
        job = _Job(config, folder, resume, said, stops, n_workers)
        with _stopping(stops):
            ended, n_restarts = _trained_together(job), 0
            while isinstance(ended, Death) and n_restarts < MAX_RESTARTS:
                if folder.exists():
                    print("a worker was lost; all workers restart from the last checkpoint", file=sys.stderr)
                    job = replace(job, resume=True)
                ended, n_restarts = _trained_together(job), n_restarts + 1
    if isinstance(ended, Death):
        print(f"the workers failed: {shown(ended.reason)}", file=sys.stderr)
        return 1
    return ended


def _trained_together(job: _Job) -> int | Death:
    """Trains until the first worker has ended; returns its exit code, or how a worker died."""
    n_gpus = int(job.config.device.startswith("cuda"))
    workers = [RayProcess[_Job | None, Any](_work, n_gpus=n_gpus) for _ in range(job.size)]
    try:
        workers[FIRST].give(None)
        address = _first_answer(workers[:1], job.said)
        if isinstance(address, Death):
            return address
        for rank, worker in enumerate(workers):
            worker.give(replace(job, rank=rank, address=address))
        return _first_answer(workers, job.said)
    finally:
        for worker in workers:
            worker.kill()


def _first_answer(workers: list[RayProcess[_Job | None, Any]], said: Queue) -> Any:
    """Shows what workers say until the first has an answer or one of them died; returns that."""
    while True:
        time.sleep(POLL_S)
        first, *others = [worker.answer() for worker in workers]
        while not said.empty():
            stream, text = said.get()
            getattr(sys, stream).write(text)
            getattr(sys, stream).flush()
        for answer in (first, *(other for other in others if isinstance(other, Death))):
            if answer is not None:
                return answer


def _stopping(stops: Queue) -> AbstractContextManager[None]:
    """Makes SIGINT and SIGTERM ask the workers to stop; a second signal ends them at once."""
    asked: list[float] = []

    def ask(*_: object) -> None:
        if asked and time.monotonic() - asked[0] > ONE_SIGNAL_S:
            raise KeyboardInterrupt
        asked.append(time.monotonic())
        print("stopping after this update; press Ctrl-C again to stop at once", file=sys.stderr)
        stops.actor.put_nowait.remote(True)

    return handled_by(ask)


def _work(job: _Job | None) -> str | int:
    """Trains as one of the workers; returns the exit code. Without a job, returns an address to join at.

    Raises:
        WorkerGoneError: another worker was killed, so that all are to restart.
    """
    if job is None:
        with socket.socket() as probe:
            probe.bind(("", 0))
            return f"tcp://{ray.util.get_node_ip_address()}:{probe.getsockname()[1]}"
    with redirect_stdout(_Relay(job.said, "stdout")), redirect_stderr(_Relay(job.said, "stderr")):
        return _trained(job)


def _trained(job: _Job) -> int:
    """Trains as one of the workers; the first one prints why it fails."""
    try:
        return train_with_others(
            joined(job.rank, job.size, job.address),
            lambda: (job.config, job.folder, job.resume),
            lambda: not job.stops.empty(),
        )
    except WorkerGoneError:
        raise
    except (InputError, WorkerLostError) as error:
        if job.rank == FIRST:
            print(f"{NAME}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception:
        if job.rank == FIRST:
            traceback.print_exc()
        return 1
