"""Callbacks of a training: its end, averaged weights, checkpoints. Each works with SB3's own, too."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import torch
from stable_baselines3.common.callbacks import BaseCallback
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel

from agent.learn.checkpoints import CheckpointError, CheckpointFolder
from agent.learn.config import ConfigError
from agent.learn.metrics import CPU_S, WALL_S
from agent.learn.workers import SOLO, WorkerGroup, any_worker, check_same, time_of_first
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from graphs.system.errors import checked
from graphs.system.running_time import running_cpu_s, running_s

if TYPE_CHECKING:
    from agent.learn.ppo import PlacementPPO

SLOWEST = 2000
"""Decisions a second that the first update of a training with a limit counts on; most machines make more."""
ASKED, OUT_OF_TIME = "asked to stop", "out of time"
"""Endings of a training, as `PlacementPPO.ending` says."""


class RolloutCallback(BaseCallback):
    """Acts on a `PlacementPPO` between rollouts, and not after each step."""

    model: PlacementPPO

    def _on_step(self) -> bool:
        return True


class UpdateCallback(RolloutCallback):
    """Acts on a `PlacementPPO` after each update, and before the first: `_on_update` says what it does."""

    def _on_training_start(self) -> None:
        self._ends = False
        self._told = self.model.updates or None  # what was done after an update is not done again on resuming

    def _on_rollout_start(self) -> None:
        if self._told != self.model.updates:
            self._told = self.model.updates
            self._on_update()

    def _on_training_end(self) -> None:
        self._ends = True
        self._on_update()

    @property
    def is_last(self) -> bool:
        """Says whether the training ends after this update."""
        return self._ends or bool(self.model.ending)

    def _on_update(self) -> None:
        """Is called once for each number of updates, and again at the end of the training."""


class TimeLimit(RolloutCallback):
    """Ends a training when its time is up, those of its earlier processes included; schedules end with it.

    The last rollouts are shortened so that their updates end in time; one update is made in any case. Time to
    compile does not count.

    Args:
        seconds: limit, infinite for none.
        group: workers, which go by the time of the first.
        paused_s: returns seconds spent on other things than updates, as evaluations.
    """

    def __init__(
        self, seconds: float, group: WorkerGroup = SOLO, paused_s: Callable[[], float] = lambda: 0.0
    ) -> None:
        super().__init__()
        checked(ConfigError, "seconds", seconds, float, least=0)
        self._limit_s, self._group, self._paused_s = seconds, group, paused_s
        self.wall_s, self.cpu_s = 0.0, 0.0

    def state_dict(self) -> dict[str, Any]:
        """Returns the limit, None without one, and the time that the training has taken."""
        limit_s = self._limit_s if self._limit_s < math.inf else None
        return {"limit_s": limit_s, "wall_s": self.wall_s, "cpu_s": self.cpu_s}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Counts on from that time."""
        self.wall_s, self.cpu_s = saved["wall_s"], saved["cpu_s"]

    def _on_training_start(self) -> None:
        self._n_steps, self._pace_s = self.model.n_steps, self.model.n_envs * self._group.size / SLOWEST
        self._began_s, self._cpu_began_s = running_s() - self.wall_s, running_cpu_s() - self.cpu_s
        self._last_s, self._paused_before_s = self.wall_s, self._paused_s()
        self._updates = self.model.updates

    def _on_rollout_start(self) -> None:
        self._read()
        if self.model.updates > self._updates:
            paused_s = self._paused_s()
            taken_s = self.wall_s - self._last_s - (paused_s - self._paused_before_s)
            self._pace_s, self._paused_before_s = max(taken_s, 1e-6) / self.model.n_steps, paused_s
            self._updates = self.model.updates
        self._last_s = self.wall_s
        left_s = self._limit_s - self.wall_s
        least = min(max(self.model.batch_size // self.model.n_envs, 2), self._n_steps)
        if self._updates and left_s <= least * self._pace_s:
            self.model.ending = OUT_OF_TIME
        self.model.n_steps = max(int(min(left_s / self._pace_s, self._n_steps)), least)

    def _on_training_end(self) -> None:
        self._read()
        self.model.n_steps = self._n_steps

    def _read(self) -> None:
        """Reads the clock, that of the first worker, and says how much of the time remains."""
        self.wall_s = time_of_first(self._group, running_s() - self._began_s)
        self.cpu_s = running_cpu_s() - self._cpu_began_s
        if self._limit_s < math.inf:
            self.model.time_remaining = max(1 - self.wall_s / self._limit_s, 0.0)
        for name, seconds in ((WALL_S, self.wall_s), (CPU_S, self.cpu_s)):
            self.logger.record(name, seconds, exclude="tensorboard")


class StopWhen(RolloutCallback):
    """Ends a training after an update when it is asked to.

    Args:
        is_asked: says whether to stop; looked at before each rollout.
        group: workers; all stop if one is asked.
    """

    def __init__(self, is_asked: Callable[[], bool], group: WorkerGroup = SOLO) -> None:
        super().__init__()
        self._is_asked, self._group = is_asked, group

    def _on_rollout_start(self) -> None:
        if any_worker(self._group, self._is_asked()):
            self.model.ending = ASKED


class AverageWeights(UpdateCallback):
    """Keeps an exponential moving average (EMA) of the weights, a step after each update.

    Args:
        decay: share of the average that an update keeps, at least 0 and below 1. It is less at first, so that
            the initial weights are soon forgotten.

    Source: averaging as in Polyak and Juditsky (1992), here with exponential weights.
    """

    def __init__(self, decay: float = 0.95) -> None:
        super().__init__()
        self._decay = decay
        self._average: AveragedModel | None = None
        self._n_averaged = 0

    @property
    def policy(self) -> Policy:
        """The policy with averaged weights."""
        assert self._average is not None, "the training has begun"
        return Policy(cast("PlacementNetwork", self._average.module), self.model.policy.placer.mdp_config)

    def state_dict(self) -> dict[str, Any]:
        """Returns the average."""
        assert self._average is not None, "the training has begun"
        return {**self._average.state_dict(), "updates": self._n_averaged}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues the average."""
        state = dict(saved)
        self._n_averaged = state.pop("updates")
        self._average = self._new()
        self._average.load_state_dict(state)

    def _new(self) -> AveragedModel:
        def follow(average: Tensor, current: Tensor, n_averaged: Tensor | int) -> Tensor:
            return current.lerp(average, min(self._decay, float((1 + n_averaged) / (10 + n_averaged))))

        return AveragedModel(self.model.policy.placer.network, avg_fn=follow)

    def _on_training_start(self) -> None:
        super()._on_training_start()
        if self._average is None:
            self._average, self._n_averaged = self._new(), self.model.updates

    def _on_update(self) -> None:
        """Averages.

        Raises:
            FloatingPointError: a weight, or an average of weights, is not finite.
        """
        if self._n_averaged == self.model.updates or self._average is None:
            return
        network = self.model.policy.placer.network
        _check_weights(network, "weights")
        self._average.update_parameters(network)
        _check_weights(self._average.module, "averaged weights")
        self._n_averaged = self.model.updates


def _check_weights(network: nn.Module, name: str) -> None:
    """Checks all weights of a network.

    Raises:
        FloatingPointError: some are NaN, infinite, or so large that their sum is.
    """
    sums = torch.stack([weights.detach().sum() for weights in network.parameters()])
    if not sums.isfinite().all():
        raise FloatingPointError(f"the {name} are not finite")


class Checkpoints(UpdateCallback):
    """Saves the model after some updates and at the end of a training, to resume from.

    Unfinished episodes are given up at each checkpoint, so that a training that is resumed from one learns
    the same as one that went on.

    Args:
        folder: takes the newest checkpoints, each a file for `PlacementPPO.load`.
        every: updates between two checkpoints.
        run: JSON values that a training resumed from them has as well.
        group: workers; the first saves, and the weights of all are compared.
    """

    def __init__(
        self,
        folder: CheckpointFolder | Path,
        every: int = 10,
        *,
        run: Mapping[str, Any] | None = None,
        group: WorkerGroup = SOLO,
    ) -> None:
        super().__init__()
        self.folder = folder if isinstance(folder, CheckpointFolder) else CheckpointFolder(folder)
        self._every, self._run, self._group = every, dict(run or {}), group

    def state_dict(self) -> dict[str, Any]:
        """Returns what the run is."""
        return self._run

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Checks that the checkpoint is of the same run.

        Raises:
            CheckpointError: it is of one with another setting.
        """
        for key, value in self._run.items():
            if saved.get(key, value) != value:
                raise CheckpointError(
                    f"{self.folder.folder}: holds a checkpoint of a run with another setting of {key}; put "
                    "the run's own checkpoint back, or start a new training under another name"
                )

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._saved = self.model.updates

    def _on_update(self) -> None:
        if self.model.updates == self._saved or not (self.is_last or self.model.updates % self._every == 0):
            return
        self._saved = self.model.updates
        self.model.log_row()  # a row that a resumed training would not write again
        check_same(self._group, self.model.policy.state_dict().values())
        if self._group.rank == 0:
            self.folder.save(self.model.updates, self.model.to_bytes())
        if not self.is_last:
            self.model.restart()
