"""Callbacks of stable-baselines3 for a training of a policy that places."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Image, TensorBoardOutputFormat

from agent.training.metrics import EVALUATED_REWARD, OVER_SEARCH, PLACED, TRAINED_ON, overview, step_time_name
from agent.training.reinforcement.actor_critic import PlacementPolicy
from agent.training.validation import RelativeMetrics, annealed_s, drawn, greedy_ratios, some
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
    """Logs how a `PlacementPPO` places problems greedily, and arranges the curves in TensorBoard.

    `compare/to_annealing` is the step time over what annealing finds in 10,000 evaluations, the geometric
    mean; `compare/trained_on` the same of up to 16 problems that the policy learns from; `eval/mean_reward`
    minus the step time over the fastest single device, the mean; `eval/placed_before` and `eval/placed_now`
    draw the step of the first problem.

    Args:
        problems: better others than those that the policy learns from.
        every: rollouts between two comparisons; the first is before the first rollout.
        order: of the decisions.
    """

    def __init__(self, problems: Sequence[Problem], every: int = 1, order: str = "topo") -> None:
        super().__init__()
        self._problems, self._every, self._order, self._n_rollouts = list(problems), every, order, 0

    def _on_training_start(self) -> None:
        trained_on = some(self.training_env.get_attr("problems")[0])
        self._relative = [
            (OVER_SEARCH, RelativeMetrics(self._problems, annealed_s(self._problems))),
            (TRAINED_ON, RelativeMetrics(trained_on, annealed_s(trained_on))),
        ]
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.writer.add_custom_scalars(overview(imitates=False))

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
        for tag, relative in reversed(self._relative):
            ratios = greedy_ratios(policy.placer, relative.problems, self._order)
            found = relative.of("held_out", enumerate(ratios))
            self.logger.record(tag, found[step_time_name("held_out", "annealing")])
        self.logger.record(EVALUATED_REWARD, -float(np.mean(ratios)))
        picture = Image(drawn(policy.placer, self._problems[0], self._order), "HWC")
        for tag in PLACED[self.num_timesteps > 0 :]:
            self.logger.record(tag, picture, exclude=("stdout", "log", "json", "csv"))
        self.logger.dump(self.num_timesteps)
