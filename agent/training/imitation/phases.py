"""What a policy learns before reinforcement: to imitate what search found, then to correct itself."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import torch

from agent.policy.policy import Policy
from agent.training.config import TrainConfig
from agent.training.context import Context
from agent.training.imitation.demonstrations import demonstrate, practise
from agent.training.imitation.learner import ImitationLearner, Trajectory, demonstrated, descents
from envs.problem import Problem

PRACTICE_PASSES = 2
"""Times that a round of practice goes through its lessons; to make them takes longer than to learn them."""


class School:
    """The stages before reinforcement, an iteration at a time; what one does depends on its number alone.

    Attributes:
        stage_ends: iterations after which imitation and practice are over.
    """

    def __init__(
        self,
        config: TrainConfig,
        context: Context,
        problems: Sequence[Problem],
        policy: Policy,
        optimizer: torch.optim.Optimizer,
    ) -> None:
        self._config, self._context, self._problems = config, context, problems
        self._policy, self._optimizer = policy, optimizer
        imitation = config.imitation_epochs if config.demonstrations else 0
        self.stage_ends = (imitation, imitation + config.dagger_rounds)
        self._teacher: ImitationLearner | None = None

    def is_out(self, iteration: int) -> bool:
        """Whether all stages are over."""
        return iteration >= self.stage_ends[-1]

    def prepare(self, iteration: int) -> None:
        """Find what is to be imitated, where that is still to come."""
        if iteration < self.stage_ends[0]:
            seed, config = (self._context.seed,), self._config
            if self._policy.mdp_config.improves:
                self._teacher = ImitationLearner(self._descents(config.demonstrations, seed), seed)
                return
            found = demonstrate(
                self._problems,
                repeats=config.demonstrations,
                evaluations=config.search,
                seed=self._context.seed,
                announce=self._context.announce,
                should_stop=self._context.should_stop,
            )
            lessons = demonstrated(self._problems, found, orders=config.order, seed=seed)
            self._teacher = ImitationLearner(lessons, seed)

    def learn(self, iteration: int) -> dict[str, float]:
        """One pass over the demonstrations, or one round of practice; metrics as `ImitationLearner.epoch`."""
        learn, rate = self._stage(iteration)
        for group in self._optimizer.param_groups:
            group["lr"] = rate
        return learn(iteration) | {"learning_rate": rate}

    def _stage(self, iteration: int) -> tuple[Callable[[int], dict[str, float]], float]:
        """What is done in an iteration, and the learning rate."""
        config, (imitation, end) = self._config, self.stage_ends
        if iteration < imitation:
            share = iteration / imitation
            return self._imitate, between(config.imitation_rate, config.final_learning_rate, share)
        share = (iteration - imitation) / (end - imitation)
        return self._practise, between(config.dagger_rate, config.final_learning_rate, share)

    def _imitate(self, iteration: int) -> dict[str, float]:
        assert self._teacher is not None
        return self._epoch(self._teacher, iteration)

    def _practise(self, iteration: int) -> dict[str, float]:
        self._teacher = None
        seed = (self._context.seed, iteration)
        teacher = ImitationLearner(self._own(seed), seed)
        rounds = [self._epoch(teacher, number) for number in range(PRACTICE_PASSES)]
        decisions = sum(metrics["imitation/decisions"] for metrics in rounds)
        return rounds[-1] | {"imitation/decisions": decisions}

    def _own(self, seed: Sequence[int]) -> list[Trajectory]:
        """Lessons from the policy's own placements; who improves learns from further descents."""
        if self._policy.mdp_config.improves:
            return self._descents(1, seed)
        rng = np.random.default_rng(seed)
        order = self._config.order[int(rng.integers(len(self._config.order)))]
        placed = practise(self._policy, self._problems, order=order, rng=rng)
        return demonstrated(self._problems, placed, orders=(order,), seed=seed)

    def _descents(self, repeats: int, seed: Sequence[int]) -> list[Trajectory]:
        walks, orders = self._policy.mdp_config, self._config.order
        return descents(self._problems, orders=orders, walks=walks, repeats=repeats, seed=seed)

    def _epoch(self, teacher: ImitationLearner, number: int) -> dict[str, float]:
        return teacher.epoch(
            number,
            self._policy,
            self._optimizer,
            max_grad_norm=self._config.max_grad_norm,
            threads=self._config.threads,
        )


def between(first: float, last: float, progress: float) -> float:
    """Linear interpolation of a schedule at a progress of 0 to 1."""
    return first + (last - first) * progress
