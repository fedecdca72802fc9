"""Callbacks of stable-baselines3 for a training of a policy that places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback

from agent.training.metrics import EVALUATED_REWARD, OVER_SEARCH, step_time_name
from agent.training.reinforcement.actor_critic import PlacementPolicy
from agent.training.validation import RelativeMetrics, annealed_s, greedy_ratios
from envs.placement.episodes import EpisodeResult
from envs.problem import Problem


class EndedEpisodes(BaseCallback):
    """Keeps the results of the own episodes that end."""

    def __init__(self) -> None:
        super().__init__()
        self.results: list[EpisodeResult] = []

    def _on_step(self) -> bool:
        self.results += [info["result"] for info in self.locals["infos"] if info]
        return True


class CompareWithSearch(BaseCallback):
    """Logs how a `PlacementPPO` places problems greedily: `compare/to_annealing` and `eval/mean_reward`.

    The first is the step time over what annealing finds in 10,000 evaluations, the geometric mean; the other
    minus the step time over the fastest single device, the mean.

    Args:
        problems: better others than those that the policy learns from.
        every: rollouts between two comparisons; the first is before the first rollout.
        order: of the decisions.
    """

    def __init__(self, problems: Sequence[Problem], every: int = 1, order: str = "topo") -> None:
        super().__init__()
        self._problems, self._every, self._order, self._n_rollouts = list(problems), every, order, 0

    def _on_training_start(self) -> None:
        self._relative = RelativeMetrics(self._problems, annealed_s(self._problems))

    def _on_rollout_start(self) -> None:
        if self._n_rollouts % self._every == 0:
            self._compare()
        self._n_rollouts += 1

    def _on_training_end(self) -> None:
        self._compare()

    def _on_step(self) -> bool:
        return True

    def _compare(self) -> None:
        policy = self.model.policy
        assert isinstance(policy, PlacementPolicy), "it compares what a PlacementPPO trains"
        ratios = greedy_ratios(policy.placer, self._problems, self._order)
        found = self._relative.of("held_out", enumerate(ratios))
        self.logger.record(OVER_SEARCH, found[step_time_name("held_out", "annealing")])
        self.logger.record(EVALUATED_REWARD, -float(np.mean(ratios)))
        self.logger.dump(self.num_timesteps)
