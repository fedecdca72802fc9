"""A training in one process on this machine, which writes `runs/NAME/`."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from types import FrameType
from typing import Self

from rich.console import Console

from agent.training import run_folder as runs
from agent.training.checkpoints import CheckpointFolder
from agent.training.config import ConfigError, TrainConfig
from agent.training.metrics import ITERATION
from agent.training.reporters import MetricsFile, ProgressBar, Reporter, TensorBoard
from agent.training.split import Split, split_graphs
from agent.training.trainer import Result
from graphs.dataset import load_graphs
from graphs.io.graph_files import read_graphs
from graphs.io.json_files import write_json_atomic


class LocalContext:
    """Trains in this process until done or asked to stop by SIGINT or SIGTERM; use as a context manager.

    Args:
        folder: of the run; made on entry unless `resume`.
        resume: whether to go on with what is there.

    Raises:
        ValueError: graphs that cannot be read or leave nothing to train on, before anything is written; on
            entry, a run that is in use.
    """

    def __init__(self, config: TrainConfig, folder: Path, *, resume: bool, console: Console) -> None:
        self.config, self.folder, self.resume = config, folder, resume
        self.seed, self.device = config.seed, config.device
        self.graphs = load_split(config)
        self.checkpoints = CheckpointFolder(folder / "checkpoints")
        self._console = console
        self._reporters: list[Reporter] = []
        self._bar = ProgressBar(console)
        self._final: dict[str, float] = {}
        self._stop = False
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        if not self.resume:
            runs.create(self.folder, self.config)
        self._cleanup.enter_context(runs.lock(self.folder))
        for number in (signal.SIGINT, signal.SIGTERM):
            self._cleanup.callback(signal.signal, number, signal.signal(number, self._on_signal))
        return self

    def __exit__(self, *_: object) -> None:
        for reporter in self._reporters or [self._bar]:
            reporter.close(self._final)
        self._cleanup.close()

    def report(self, timesteps: int, metrics: Mapping[str, float]) -> None:
        """Passes the numbers of one update on to file, TensorBoard and screen."""
        if not self._reporters:
            self._open_reporters(timesteps, int(metrics[ITERATION]))
        for reporter in self._reporters:
            reporter.report(timesteps, metrics)

    def announce(self, activity: str, share: float) -> None:
        """Shows it on the screen."""
        self._bar.announce(activity, share)

    def should_stop(self) -> bool:
        """Says whether a signal came."""
        return self._stop

    def finish(self, result: Result) -> None:
        """Writes `result.json` and keeps the closing numbers, unless training was stopped."""
        if result.finished:
            write_json_atomic(self.folder / "result.json", asdict(result))
            numbers = {
                key: value for key, value in asdict(result).items() if key not in ("finished", "cut_short")
            }
            self._final = {key: float(value) for key, value in numbers.items()}

    def _open_reporters(self, timesteps: int, iteration: int) -> None:
        """Opens all; rows and scalars later than the last checkpoint, left by a killed run, are replaced."""
        self._reporters = [
            MetricsFile(self.folder / "metrics.jsonl", iteration),
            TensorBoard(self.folder, self.config.to_json(), timesteps),
            self._bar,
        ]

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stops after the update under way; at once when asked again."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self._console.print("stopping after this update; once more to stop at once")


def load_split(config: TrainConfig) -> Split:
    """Reads the graphs that a configuration names, and splits them by use.

    Raises:
        ConfigError: none are named, or the split leaves none to train on.
        ValueError: a family or a file cannot be read.
    """
    if not (config.families or config.graphs):
        raise ConfigError("nothing to train on; give --families or --graphs")
    graphs = load_graphs(config.families)
    for path in config.graphs:
        graphs.extend(read_graphs(path))
    return split_graphs(graphs, holdout=config.holdout, validation=config.validation)
