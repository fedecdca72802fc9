"""Callbacks of stable-baselines3, which record numbers during a rollout."""

from __future__ import annotations

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from envs.mdp.episodes import EpisodeResult


class EpisodeLog(BaseCallback):
    """Collects the results of episodes that end."""

    def __init__(self) -> None:
        super().__init__()
        self._results: list[EpisodeResult] = []

    def _on_step(self) -> bool:
        infos = self.locals["infos"]
        self._results.extend(infos[at]["result"] for at in np.flatnonzero(self.locals["dones"]))
        return True

    def take(self) -> list[EpisodeResult]:
        """Returns the results since the last call, and forgets them."""
        taken, self._results = self._results, []
        return taken
