"""The phase in which a policy learns by maskable PPO from the step times of its own episodes."""

from __future__ import annotations

import torch

from agent.training.clock import between
from agent.training.phase import Phase
from agent.training.reinforcement import ppo
from agent.training.reinforcement.callbacks import EpisodeLog
from agent.training.state import TrainingState
from agent.training.validation import RelativeMetrics
from agent.training.workers import gather_unequal


class Reinforcement(Phase):
    """PPO; a step is one rollout and the updates from it.

    Args:
        metrics: relates the step times of its episodes to references.
    """

    name = "reinforcement"
    share = 0.2
    rate = "learning_rate"

    def __init__(self, state: TrainingState, metrics: RelativeMetrics) -> None:
        super().__init__(state)
        self._metrics = metrics
        self._log = EpisodeLog()

    @property
    def is_on(self) -> bool:
        """Whether any decisions are asked for."""
        return self.state.config.timesteps > 0

    @property
    def is_complete(self) -> bool:
        """Whether all decisions are made."""
        return self.state.timesteps >= self.state.config.timesteps

    @property
    def shortfall(self) -> str:
        """Decisions made of those asked for."""
        if self.is_complete:
            return ""
        return f"{self.state.timesteps:,} of {self.state.config.timesteps:,} decisions"

    def learn(self) -> dict[str, float]:
        """Makes a rollout of all environments and updates the policy."""
        state, config = self.state, self.state.config
        state.ppo.ent_coef = between(config.entropy, config.final_entropy, state.progress)
        metrics = ppo.learn(state.ppo, config, self._log, state.group)
        state.timesteps = state.ppo.num_timesteps
        return {
            "update/learning_rate": state.learning_rate(),
            "update/entropy_weight": state.ppo.ent_coef,
            **metrics,
            **self._episode_metrics(),
        }

    def _episode_metrics(self) -> dict[str, float]:
        own = [(each.problem, each.ratio_to_single, each.fits) for each in self._log.take()]
        rows = torch.tensor(own, dtype=torch.float64).reshape(-1, 3)
        episodes = gather_unequal(self.state.group, rows)[0].tolist()
        if not episodes:
            return {}
        feasible = [(int(problem), ratio) for problem, ratio, fits in episodes if fits]
        return {
            "training/episodes": len(episodes),
            "training/infeasible": 1 - len(feasible) / len(episodes),
            **self._metrics.of("train", feasible),
        }
