"""The interface of the phases of a training."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, ClassVar

from agent.training.state import TrainingState


class Phase(ABC):
    """One part of a training, made step by step until it is done.

    Attributes:
        name: as it is called in messages and checkpoints.
        share: of the time of a training with a limit.
        rate: the setting that is its learning rate; empty where it learns nothing.
        step_s: seconds of the last one; 0 before the first.
        timed_out: whether its time leaves none for another one, or left none for the first.
    """

    name: ClassVar[str]
    share: ClassVar[float]
    rate: ClassVar[str] = ""

    def __init__(self, state: TrainingState) -> None:
        self.state = state
        self.steps = 0
        self.step_s = 0.0
        self.timed_out = False
        self._begun_s: float | None = None

    @property
    def done(self) -> bool:
        """Says whether all is learned, or the time is up."""
        return self.timed_out or self.is_complete

    @property
    @abstractmethod
    def is_on(self) -> bool:
        """Says whether the configuration asks for it at all."""

    @property
    @abstractmethod
    def is_complete(self) -> bool:
        """Says whether all that the configuration asks for is done."""

    @property
    @abstractmethod
    def shortfall(self) -> str:
        """Returns how much of the phase was done, where time cut it short; else empty."""

    @abstractmethod
    def learn(self) -> dict[str, float]:
        """Makes one update of the policy, and returns its metrics; nothing where there was none.

        Raises:
            FloatingPointError: a number that the policy learns from is not finite.
        """

    def leave_out_if_late(self) -> None:
        """Leaves the phase out if its first step would outlast the whole training's time."""
        self.timed_out |= self.steps == 0 and self.state.clock.all_left_s <= self.first_step_s

    @property
    def first_step_s(self) -> float:
        """Seconds that the first step takes at least, as far as that is known before."""
        return 0.0

    @property
    def least_step_s(self) -> float:
        """Seconds that another step takes at least."""
        return self.step_s

    def step(self) -> dict[str, float]:
        """Makes one step and looks at the clock; returns the metrics of an update.

        The phase ends where another step and an evaluation would not end in its time.
        """
        clock = self.state.clock
        clock.agree()
        began_s = clock.wall_s
        if self._begun_s is None:
            self._begun_s = began_s
        metrics = self.learn()
        self.steps += 1
        clock.agree()
        self.step_s = clock.wall_s - began_s
        self.timed_out = clock.left_s(self.name) <= self.least_step_s + self.state.evaluation_s
        return metrics

    def progress(self, planned: int) -> float:
        """Share of the phase that is done, 0 to 1: of its steps or of its time, whichever is further."""
        clock = self.state.clock
        by_time = clock.progress_since(self._begun_s, self.name) if self._begun_s is not None else 0.0
        return max(self.steps / planned, by_time)

    def state_dict(self) -> dict[str, Any]:
        """JSON values for a checkpoint."""
        return {"steps": self.steps, "timed_out": self.timed_out, "begun_s": self._begun_s}

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on from a checkpoint."""
        self.steps, self.timed_out, self._begun_s = saved["steps"], saved["timed_out"], saved["begun_s"]
