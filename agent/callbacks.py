"""What happens around and during a rollout."""

from __future__ import annotations

from contextlib import ExitStack

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agent.threads import torch_threads
from envs.episodes import Ending


class EpisodeLog(BaseCallback):
    """Collects the endings of episodes; rollouts use one thread of torch, updates all of them."""

    def __init__(self) -> None:
        super().__init__()
        self._endings: list[Ending] = []
        self._rollout = ExitStack()

    def _on_rollout_start(self) -> None:
        self._rollout.enter_context(torch_threads(1))

    def _on_rollout_end(self) -> None:
        self._rollout.close()

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._endings.extend(infos[at]["ending"] for at in np.flatnonzero(self.locals["dones"]))
        return True

    def take(self) -> list[Ending]:
        """The endings since the last call."""
        taken, self._endings = self._endings, []
        return taken
