"""The context in which `agent.training.trainer.train` runs a training.

To add one, implement `Context`; `train` knows nothing of processes, searches or clusters.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from agent.training.checkpoints import CheckpointFolder
from agent.training.problems import Split
from agent.training.workers import WorkerGroup
from envs.placement.render import Picture
from envs.runtime.runnable_model import RunnableModel


class Context(Protocol):
    """Interface to the place that a training runs in.

    Attributes:
        device: torch device of the network.
        graphs: what to train, validate and report on.
        checkpoints: folder to resume from and to save to.
        runnable: the model to run, if measured step times are learned from.
        group: the workers that train together; `SoloGroup()` for one process.
    """

    seed: int
    device: str
    folder: Path
    graphs: Split
    checkpoints: CheckpointFolder
    runnable: RunnableModel | None
    group: WorkerGroup

    def report(self, timesteps: int, metrics: Mapping[str, float]) -> None:
        """Takes the numbers of one update; a repeated iteration replaces the earlier one.

        Only what the first worker reports is complete.
        """

    def show(self, timesteps: int, tag: str, picture: Picture) -> None:
        """Shows a picture, uint8 (height, width, 3), after the numbers of its update."""

    def announce(self, activity: str, share: float) -> None:
        """Shows the activity before the first update, and the share of it that is done."""

    def should_stop(self) -> bool:
        """Says whether to stop after this update, leaving a checkpoint; all workers stop if one does."""
