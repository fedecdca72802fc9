"""One policy trained by several workers: the first is a local training, the others learn along with it."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import FrameType
from typing import Self

from rich.console import Console

from agent.contexts.local import LocalContext, train_in
from agent.contexts.process_group import ProcessGroup, WorkerLostError, joined
from agent.learn.checkpoints import Checkpoint, CheckpointFolder
from agent.learn.config import MEASURED, ConfigError, TrainConfig
from agent.learn.workers import FIRST, WorkerGroup, share_file
from graphs.system.errors import InputError

ONE_SIGNAL_S = 2.0
"""Signals within this time count as one: a terminal sends SIGINT to every worker, and so does torchrun."""
Told = Callable[[], bool]
"""Says whether the first worker is asked to stop, besides by a signal."""
Resolve = Callable[[], tuple[TrainConfig, Path, bool]]
"""Gives the configuration, the folder of the run and whether to go on with it; the first worker calls it."""


class SharedCheckpoints(CheckpointFolder):
    """The first worker's checkpoints, from which all workers resume."""

    def __init__(self, folder: Path, group: WorkerGroup) -> None:
        super().__init__(folder)
        self._group = group

    def latest(self, announce: Callable[[str], None] = lambda line: None) -> Checkpoint | None:
        """Reads the newest checkpoint of the first worker; all workers call it together."""
        is_first = self._group.rank == FIRST
        checkpoint = super().latest(announce) if is_first else None
        name = checkpoint.path.name if checkpoint and checkpoint.path else ""
        name = self._group.broadcast(name.encode()).decode()
        if not name:
            return None
        share_file(self._group, self.folder / name)
        return checkpoint if is_first else super().latest()


class WorkerContext(LocalContext):
    """Trains with the other workers; the first one writes the run.

    Args:
        group: the workers; where this one fails, all do.
    """

    def __init__(
        self,
        config: TrainConfig,
        folder: Path,
        *,
        resume: bool,
        console: Console | None = None,
        group: ProcessGroup,
        told: Told | None = None,
    ) -> None:
        check_workers_fit(config, group.size)
        super().__init__(config, folder, resume=resume, console=console)
        self.group, self._processes, self._told = group, group, told
        self.checkpoints = SharedCheckpoints(folder / "checkpoints", group)
        self._signalled_s = -ONE_SIGNAL_S

    def __enter__(self) -> Self:
        super().__enter__()
        self._cleanup.enter_context(self._processes.failing_together())
        return self

    def should_stop(self) -> bool:
        """Says whether a signal came, or it was asked to stop."""
        return super().should_stop() or (self._told is not None and self._told())

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        if now - self._signalled_s >= ONE_SIGNAL_S:
            self._signalled_s = now
            super()._on_signal(number, frame)


def check_workers_fit(config: TrainConfig, size: int) -> None:
    """Checks that a training can be divided among some workers.

    Raises:
        ConfigError: it cannot.
    """
    if config.n_envs % size:
        raise ConfigError(
            f"n_envs is {config.n_envs}, which {size} workers cannot share; use a multiple of {size}"
        )
    if config.reward == MEASURED:
        raise ConfigError("--reward measured runs on the devices of one machine; train with --context local")


def _stop_with(parent: int) -> None:
    """Stops this worker as SIGTERM does when torchrun, which started it, is killed."""
    while os.getppid() == parent:
        time.sleep(ONE_SIGNAL_S)
    os.kill(os.getpid(), signal.SIGTERM)


def train_under_torchrun(resolve: Resolve) -> int:
    """Trains as one of several workers that torchrun started with the same command.

    Returns:
        The exit code, the same on all workers: 0 done, 1 stopped or failed, 2 wrong input.

    Raises:
        InputError: wrong input, in the first worker.
    """
    is_first = os.environ.get("RANK") == "0"
    Thread(target=_stop_with, args=(os.getppid(),), daemon=True).start()
    try:
        return train_with_others(joined(), resolve)
    except InputError:
        if is_first:
            raise
        return 2
    except WorkerLostError as error:
        if is_first:
            print(f"{error}; use --resume to continue from the last checkpoint", file=sys.stderr)
        return 1


def train_with_others(
    joined: AbstractContextManager[ProcessGroup], resolve: Resolve, told: Told | None = None
) -> int:
    """Trains as one of several workers; the first one prints.

    Args:
        resolve: called by the first worker alone.
        told: says whether the first worker is asked to stop.

    Returns:
        The exit code.

    Raises:
        InputError: wrong input, in any worker.
        WorkerLostError: another worker failed or is gone.
    """
    with ExitStack() as stack:
        group = stack.enter_context(joined)
        if group.rank == FIRST:
            config, folder, resume = resolve()
            group.broadcast(json.dumps(config.to_json()).encode())
            return train_in(WorkerContext(config, folder, resume=resume, group=group, told=told))
        nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
        stack.enter_context(redirect_stdout(nowhere))
        stack.enter_context(redirect_stderr(nowhere))
        scratch = Path(stack.enter_context(TemporaryDirectory(prefix="placewalk-worker-")), "run")
        config = TrainConfig.from_json(json.loads(group.broadcast(b"")), "first worker")
        quiet = Console(quiet=True)
        return train_in(WorkerContext(config, scratch, resume=False, console=quiet, group=group))
