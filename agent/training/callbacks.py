"""What is noted during a rollout."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from envs.mdp.episodes import EpisodeResult


class EpisodeLog(BaseCallback):
    """Collects the endings of episodes."""

    def __init__(self) -> None:
        super().__init__()
        self._endings: list[EpisodeResult] = []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._endings.extend(infos[at]["result"] for at in np.flatnonzero(self.locals["dones"]))
        return True

    def take(self) -> list[EpisodeResult]:
        """The endings since the last call."""
        taken, self._endings = self._endings, []
        return taken
