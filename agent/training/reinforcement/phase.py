"""The phase in which a policy learns by maskable PPO from the step times of its own episodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from agent.training.clock import between
from agent.training.metrics import FROM_SB3, LENGTH, REWARD
from agent.training.phase import Phase
from agent.training.reinforcement.callbacks import EndedEpisodes
from agent.training.state import TrainingState
from agent.training.validation import RelativeMetrics
from agent.training.workers import gather_unequal
from envs.placement.episodes import EpisodeResult

SLOWEST = 2000
"""Decisions a second that the first update of a training with a limit counts on; most machines make more."""


class Reinforcement(Phase):
    """PPO; a step is one rollout and the updates from it, shorter ones where the time left asks for it.

    Args:
        metrics: relates the step times of its episodes to references.
    """

    name = "reinforcement"
    share = 0.5
    rate = "learning_rate"

    def __init__(self, state: TrainingState, metrics: RelativeMetrics) -> None:
        super().__init__(state)
        self._metrics = metrics
        self._n_steps = 0

    @property
    def is_on(self) -> bool:
        """Says whether any decisions are asked for."""
        return self.state.config.timesteps > 0

    @property
    def is_complete(self) -> bool:
        """Says whether all decisions are made."""
        return self.state.timesteps >= self.state.config.timesteps

    @property
    def shortfall(self) -> str:
        """Decisions made of those asked for."""
        if self.is_complete:
            return ""
        return f"{self.state.timesteps:,} of {self.state.config.timesteps:,} decisions"

    @property
    def _least_n_steps(self) -> int:
        """Decisions of each episode in the shortest update, of one minibatch."""
        config = self.state.config
        return min(max(config.batch_size // config.n_envs, 2), config.n_steps)

    @property
    def least_step_s(self) -> float:
        """Seconds of the shortest update, at the pace of the last one."""
        return self.step_s * self._least_n_steps / self._n_steps

    def _n_steps_in_time(self) -> int:
        """Decisions of each episode that an update has time for; all that are set where that is ample."""
        state, config = self.state, self.state.config
        per_step_s = self.step_s / self._n_steps if self._n_steps else config.n_envs / SLOWEST
        left_s = state.clock.left_s(self.name) - state.evaluation_s
        return max(int(min(left_s / per_step_s, config.n_steps)), self._least_n_steps)

    def learn(self) -> dict[str, float]:
        """Makes a rollout of all environments and updates the policy."""
        state, config = self.state, self.state.config
        self._n_steps = self._n_steps_in_time()
        state.ppo.ent_coef = between(config.entropy, config.final_entropy, state.progress)
        state.ppo.n_steps, ended = self._n_steps, EndedEpisodes()
        state.ppo.learn(
            config.n_envs * self._n_steps, callback=ended, log_interval=None, reset_num_timesteps=False
        )
        state.timesteps = state.ppo.num_timesteps
        return {
            "train/learning_rate": state.learning_rate(),
            "train/entropy_coef": state.ppo.ent_coef,
            **self._update_metrics(),
            **self._episode_metrics(ended.results),
        }

    def _update_metrics(self) -> dict[str, float]:
        """Reads what SB3 recorded of the last update."""
        logger = self.state.ppo.logger
        metrics = {name: float(logger.name_to_value[name]) for name in FROM_SB3}
        logger.dump()
        return metrics

    def _episode_metrics(self, ended: Sequence[EpisodeResult]) -> dict[str, float]:
        own = [
            (each.problem, each.ratio_to_single, each.fits, each.episode_return, each.decisions)
            for each in ended
        ]
        rows = torch.tensor(own, dtype=torch.float64).reshape(-1, 5)
        episodes = gather_unequal(self.state.group, rows)[0]
        if not len(episodes):
            return {}
        feasible = [(int(problem), ratio) for problem, ratio, fits, *_ in episodes.tolist() if fits]
        return {
            REWARD: float(episodes[:, 3].mean()),
            LENGTH: float(episodes[:, 4].mean()),
            "training/episodes": len(episodes),
            "training/infeasible": 1 - len(feasible) / len(episodes),
            **self._metrics.of("train", feasible),
        }
