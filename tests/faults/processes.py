"""Real processes that run a command, started from the server of the tests."""

from __future__ import annotations

import csv
import json
import os
import resource
import signal
import sys
import time
from collections.abc import Callable, Sequence
from importlib import import_module
from multiprocessing.context import ForkServerProcess
from pathlib import Path

from agent.learn.metrics import CPU_S, SPEED, WALL_S
from tests.fork_server import context

TRAIN, EVALUATE = "agent.commands.train", "agent.commands.evaluate"
PATIENCE_S = 120.0
CLOCK = {WALL_S, CPU_S, SPEED, "time/time_elapsed", "time/iterations"}
"""Metrics that depend on the clock, or count from when a run was resumed."""

TRAINING = "--graphs graphs.jsonl --hidden 8 --rounds 1 --n-envs 8 --repeats 4 --n-steps 16 --batch-size 64"
TRAINING += " --epochs 1 --timesteps 896 --checkpoint-every 1 --eval-every 1 --threads 1"
"""Flags of a training of seven updates, which takes about a second."""


class Command:
    """A command that runs in a process of its own; what it prints is in a file.

    Args:
        module: with a function `main`.
        words: the command line.
        folder: to run in.
        file_bytes: limit on the size of every file that it writes.
        environment: variables that it gets besides.
    """

    def __init__(
        self,
        module: str,
        words: Sequence[str],
        folder: Path,
        *,
        file_bytes: int | None = None,
        **environment: str,
    ) -> None:
        # Beside the folder, which may be a disk that is full.
        self._output = folder.with_name(f"{folder.name}-output-{time.monotonic_ns()}")
        arguments = (module, list(words), str(folder), str(self._output), file_bytes, environment)
        self.process: ForkServerProcess = context.Process(target=_run, args=arguments)
        self.process.start()

    @property
    def output(self) -> str:
        """What it has printed so far, on stdout and stderr."""
        return self._output.read_text(errors="backslashreplace") if self._output.exists() else ""

    def send(self, number: signal.Signals) -> None:
        """Sends a signal when the command has begun, unless it has ended."""
        self.wait_until(self._output.exists)
        pid = self.process.pid
        if pid is not None and self.process.is_alive():
            os.kill(pid, number)

    def wait(self, patience_s: float = PATIENCE_S) -> int:
        """Waits for its end; returns its exit code, minus the signal if one killed it."""
        self.process.join(patience_s)
        if self.process.exitcode is None:
            self.process.kill()
            raise AssertionError(f"it hangs; it printed:\n{self.output}")
        return self.process.exitcode

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Waits for something that it does."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert self.process.is_alive(), f"it ended before:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.output}"
            time.sleep(0.01)


def _run(
    module: str,
    words: list[str],
    folder: str,
    output: str,
    file_bytes: int | None,
    environment: dict[str, str],
) -> None:
    os.environ |= environment
    for number in (signal.SIGINT, signal.SIGTERM):  # as the command does when it has begun
        signal.signal(number, lambda *_: os._exit(1))
    os.chdir(folder)
    descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, 1)
    os.dup2(descriptor, 2)
    if file_bytes is not None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_bytes, file_bytes))
    sys.exit(import_module(module).main(words))


def train(folder: Path, name: str, *flags: str) -> Command:
    """Begins a training, or goes on with it if it was begun."""
    begun = (folder / "runs" / name).exists()
    words = ["--resume"] if begun else [*TRAINING.split(), *flags]
    return Command(TRAIN, [*words, "--name", name], folder)


def rows_of(run: Path) -> list[dict[str, object]]:
    """Rows of `metrics.jsonl`, without what depends on the clock."""
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [{key: value for key, value in row.items() if key not in CLOCK} for row in rows]


def table_of(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def trials_of(out: Path) -> list[dict[str, str]]:
    """Rows of `results.csv`, without what depends on the clock."""
    rows = table_of(out / "results.csv")
    return [{key: value for key, value in row.items() if key not in ("wall_s", "cpu_s")} for row in rows]
