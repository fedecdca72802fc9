"""A training by several workers on a Ray cluster; this process starts them, shows their output and waits."""

from __future__ import annotations

import io
import os
import shutil
import sys
import threading
import time
import traceback
from contextlib import AbstractContextManager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ray
from ray.train import FailureConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer

from agent.contexts.distributed import ONE_SIGNAL_S, Resolve, check_workers_fit, train_with_others
from agent.contexts.engine import ray_cluster
from agent.contexts.process_group import PATIENCE, WorkerGoneError, WorkerLostError, already_joined
from agent.learn.config import TrainConfig
from graphs.system.errors import InputError, shown
from graphs.system.interrupts import handled_by

MAX_RESTARTS = 10
"""New starts of the workers after one of them was killed."""
NAME = "train_agent.py"
POLL_S = 0.2
SETTINGS = {
    "RAY_CHDIR_TO_TRIAL_DIR": "0",
    "RAY_TRAIN_ENABLE_PRINT_PATCH": "0",
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.5",
}
"""Of Ray Train: workers stay in the directory they are given, print once, and are soon noticed when dead."""


@dataclass(frozen=True)
class _Job:
    """The job that every worker is given.

    Attributes:
        directory: to run in, where the files that the configuration names are.
    """

    config: dict[str, Any]
    folder: str
    resume: bool
    directory: str
    mailbox: Any


@ray.remote(num_cpus=0)
class Mailbox:
    """The messages between the first worker and the process that started it."""

    def __init__(self) -> None:
        self._said: list[tuple[str, str]] = []
        self._stops = False
        self._code: int | None = None
        self._n_begun = 0

    def begin(self) -> int:
        """Counts how often the first worker began, this time left out."""
        self._n_begun += 1
        return self._n_begun - 1

    def say(self, stream: str, text: str) -> None:
        """Keeps what the first worker prints to `stdout` or `stderr`."""
        self._said.append((stream, text))

    def end(self, code: int) -> None:
        """Keeps the exit code."""
        self._code = code

    def stop(self) -> None:
        """Asks the workers to stop after their update."""
        self._stops = True

    def stops(self) -> bool:
        """Says whether they are to stop."""
        return self._stops

    def take(self) -> tuple[list[tuple[str, str]], int | None]:
        """Returns the text printed since the last call, and the exit code, if there is one."""
        said, self._said = self._said, []
        return said, self._code


class _Relay(io.TextIOBase):
    """A text stream whose other end is the process that started the workers."""

    def __init__(self, mailbox: Any, stream: str) -> None:
        self._mailbox, self._stream = mailbox, stream

    def write(self, text: str) -> int:
        """Passes a text on."""
        self._mailbox.say.remote(self._stream, text)
        return len(text)

    def flush(self) -> None:
        """Does nothing: nothing is kept back."""

    def isatty(self) -> bool:
        """Is no terminal."""
        return False


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
        return _train(config, folder, resume, n_workers)


def _train(config: TrainConfig, folder: Path, resume: bool, n_workers: int) -> int:
    os.environ |= SETTINGS
    mailbox = Mailbox.remote()  # type: ignore[attr-defined]
    job = _Job(config.to_json(), str(folder), resume, os.getcwd(), mailbox)
    own_files = folder.parent.absolute() / f".ray-{folder.name}"
    shutil.rmtree(own_files, ignore_errors=True)  # nothing that is there already is read
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job},
        torch_config=TorchConfig(
            backend="cpu:gloo,cuda:nccl" if config.device.startswith("cuda") else "gloo",
            timeout_s=int(PATIENCE.total_seconds()),
        ),
        scaling_config=ScalingConfig(num_workers=n_workers, use_gpu=config.device.startswith("cuda")),
        run_config=RunConfig(
            name="train", storage_path=str(own_files), failure_config=FailureConfig(max_failures=MAX_RESTARTS)
        ),
    )
    try:
        with _stopping(mailbox):
            return _wait_for(trainer, mailbox)
    finally:
        shutil.rmtree(own_files, ignore_errors=True)


def _wait_for(trainer: TorchTrainer, mailbox: Any) -> int:
    """Shows what the first worker says, until the training has ended."""
    failures: list[str] = []

    def fit() -> None:
        try:
            trainer.fit()
        except Exception as error:
            failures.append(" ".join(str(error).split())[:300])

    thread = threading.Thread(target=fit, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        _show(mailbox)
    code = _show(mailbox)
    if code is None:
        reason = failures[0] if failures else "no worker says why"
        print(f"the workers failed: {shown(reason)}", file=sys.stderr)
    return 1 if code is None else code


def _show(mailbox: Any) -> int | None:
    said, code = ray.get(mailbox.take.remote())
    for stream, text in said:
        getattr(sys, stream).write(text)
        getattr(sys, stream).flush()
    return code  # type: ignore[no-any-return]


def _stopping(mailbox: Any) -> AbstractContextManager[None]:
    """Makes SIGINT and SIGTERM ask the workers to stop; a second signal ends them at once."""
    asked: list[float] = []

    def ask(*_: object) -> None:
        if asked and time.monotonic() - asked[0] > ONE_SIGNAL_S:
            raise KeyboardInterrupt
        asked.append(time.monotonic())
        print("stopping after this update; press Ctrl-C again to stop at once", file=sys.stderr)
        mailbox.stop.remote()

    return handled_by(ask)


def _work(settings: dict[str, _Job]) -> None:
    """Runs one worker; raises only if another worker has ended, so that Ray restarts the training."""
    job = settings["job"]
    os.chdir(job.directory)
    is_first = ray.train.get_context().get_world_rank() == 0
    with redirect_stdout(_Relay(job.mailbox, "stdout")), redirect_stderr(_Relay(job.mailbox, "stderr")):
        code = _trained(job, is_first=is_first)
    if is_first:
        ray.get(job.mailbox.end.remote(code))


def _trained(job: _Job, *, is_first: bool) -> int:
    """Trains as one of the workers; returns the exit code."""
    try:
        return train_with_others(
            already_joined(), lambda: _resolved(job), lambda: bool(ray.get(job.mailbox.stops.remote()))
        )
    except WorkerGoneError:
        raise
    except (InputError, WorkerLostError) as error:
        if is_first:
            print(f"{NAME}: {error}", file=sys.stderr)
        return 2 if isinstance(error, InputError) else 1
    except Exception:
        if is_first:
            traceback.print_exc()
        return 1


def _resolved(job: _Job) -> tuple[TrainConfig, Path, bool]:
    """Returns the settings of the training, which resumes if the workers have run before."""
    folder = Path(job.folder)
    again = ray.get(job.mailbox.begin.remote()) > 0 and folder.exists()
    if again:
        print("a worker was lost; all workers restart from the last checkpoint", file=sys.stderr)
    return TrainConfig.from_json(job.config, "command line"), folder, job.resume or again
