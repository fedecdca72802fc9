"""The phases before reinforcement: search, imitation of its placements, on-policy imitation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from agent.training.checkpoints import CheckpointError
from agent.training.clock import Elapsed, between
from agent.training.imitation.demonstrations import own_placements
from agent.training.imitation.learner import ImitationLearner
from agent.training.imitation.search import (
    FILE,
    SearchedPlacements,
    read_searched,
    search_placements,
    write_searched,
)
from agent.training.imitation.trajectories import Trajectory, improvement_trajectories, replay_demonstrations
from agent.training.phase import Phase
from agent.training.state import TrainingState
from agent.training.workers import FIRST, share_file

PASSES_PER_ROUND = 2
"""Passes of on-policy imitation over the trajectories of a round; making them takes longer than learning."""


class SearchForDemonstrations(Phase):
    """Searches the placements to imitate, in one step; it changes no policy.

    What was found is kept in the run's folder, as checkpoints do not hold it; if that file is damaged, it is
    searched again, which finds the same, unless time was limited. It is for constructions; a policy that
    improves placements imitates greedy improvement instead.
    """

    name = "search for demonstrations"
    share = 0.2

    def __init__(self, state: TrainingState) -> None:
        super().__init__(state)
        self._found: SearchedPlacements | None = None
        self._damage = ""
        if self.is_on and (kept := self._read()) is not None:
            self._found, elapsed = kept
            self.state.clock.go_on_from(elapsed)
            self.steps = 1

    @property
    def is_on(self) -> bool:
        """Says whether there is anything to search."""
        return self.state.config.planned_imitation_epochs > 0 and not self.state.policy.mdp_config.improves

    @property
    def is_complete(self) -> bool:
        """Says whether the search is over."""
        return self._found is not None

    @property
    def shortfall(self) -> str:
        """Searches made of those asked for."""
        return self._found.shortfall if self._found is not None else ""

    @property
    def found(self) -> SearchedPlacements:
        """Returns the placements that were found."""
        assert self._found is not None, "demonstrations come from a search that was made"
        return self._found

    def learn(self) -> dict[str, float]:
        """Searches until all demonstrations are found, the time is over or the context stops.

        The first worker searches, on all its cores, and the others wait for its results.
        """
        if self._damage:
            self.state.context.announce(f"{self._damage}; its placements will be searched again", 0.0)
        if self.state.group.rank == FIRST:
            self._search()
        if self.state.group.size > 1 and (kept := self._read()) is not None:
            self._found = kept[0]
        return {}

    def _search(self) -> None:
        state, config = self.state, self.state.config
        found = search_placements(
            state.problems,
            repeats=config.demonstrations,
            evaluations=config.search,
            seed=state.context.seed,
            announce=state.context.announce,
            should_stop=state.context.should_stop,
            seconds=state.clock.left_s(self.name),
        )
        if not state.context.should_stop():
            self._found = found
            write_searched(state.context.folder, found, state.clock.elapsed)

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Goes on from a checkpoint.

        Raises:
            CheckpointError: what was found is lost, and there is no time to search it again.
        """
        super().load_state_dict(saved)
        if self.steps and not self.is_complete and (self.timed_out or self.state.config.limit_s < math.inf):
            damage = self._damage or f"{self.state.context.folder / FILE}: is missing"
            raise CheckpointError(
                f"{damage}; a search in limited time finds other placements, so put the file back, or train "
                "anew under another name"
            )

    def _read(self) -> tuple[SearchedPlacements, Elapsed] | None:
        """Reads what the first worker's folder holds; a file that cannot be read counts as none."""
        folder = self.state.context.folder
        share_file(self.state.group, folder / FILE)
        try:
            return read_searched(folder, self.state.problems)
        except CheckpointError as error:
            self._damage = str(error)
            return None


class _ImitationPhase(Phase):
    """Updates a planned number of times by imitation, at a learning rate that decreases during the phase."""

    unit: str
    planned: int

    @property
    def is_on(self) -> bool:
        """Says whether any steps are planned."""
        return self.planned > 0

    @property
    def is_complete(self) -> bool:
        """Says whether all planned steps are made."""
        return self.steps >= self.planned

    @property
    def shortfall(self) -> str:
        """Steps made of those planned."""
        return "" if self.is_complete else f"{self.steps} of {self.planned} {self.unit}"

    def set_learning_rate(self) -> float:
        """Sets the optimizer's learning rate to that of this step, and returns it."""
        config = self.state.config
        rate = between(getattr(config, self.rate), config.final_learning_rate, self.progress(self.planned))
        for group in self.state.ppo.policy.optimizer.param_groups:
            group["lr"] = rate
        return rate

    def epoch(self, learner: ImitationLearner, number: int) -> dict[str, float]:
        """One pass over the learner's trajectories; counts its decisions."""
        metrics, decisions = learner.epoch(
            number,
            self.state.policy,
            self.state.ppo.policy.optimizer,
            max_grad_norm=self.state.config.max_grad_norm,
            threads=self.state.config.threads,
            group=self.state.group,
        )
        self.state.imitated += decisions
        return metrics

    def improvements(self, repeats: int, seed: Sequence[int]) -> list[Trajectory]:
        """Greedy improvements of every problem; fewer of them if the time is up before."""
        return improvement_trajectories(
            self.state.problems,
            orders=self.state.config.order,
            mdp_config=self.state.policy.mdp_config,
            repeats=repeats,
            seed=seed,
            should_stop=self._is_time_up,
        )

    def _is_time_up(self) -> bool:
        self.state.clock.agree()
        return self.state.clock.left_s(self.name) <= 0


class Imitation(_ImitationPhase):
    """Imitates the placements that were searched; a step is one pass over all of them."""

    name = "imitation"
    share = 0.15
    unit = "passes"
    rate = "imitation_rate"

    def __init__(self, state: TrainingState, search: SearchForDemonstrations) -> None:
        super().__init__(state)
        self.planned = state.config.planned_imitation_epochs
        self._search = search
        self._learner: ImitationLearner | None = None

    def learn(self) -> dict[str, float]:
        """Makes one pass over the demonstrations."""
        if self._learner is None:
            seed = (self.state.context.seed,)
            self._learner = ImitationLearner(self._trajectories(seed), seed)
        rate = self.set_learning_rate()
        return self.epoch(self._learner, self.steps) | {"train/learning_rate": rate}

    def _trajectories(self, seed: Sequence[int]) -> list[Trajectory]:
        state = self.state
        if state.policy.mdp_config.improves:
            return self.improvements(state.config.demonstrations, seed)
        found = self._search.found.demonstrations
        return replay_demonstrations(
            state.problems, found, orders=state.config.order, mdp_config=state.policy.mdp_config, seed=seed
        )


class OnPolicyImitation(_ImitationPhase):
    """Places every problem by the policy and imitates the best single moves from there; a step is one round.

    The situations are those that the policy itself gets into. A policy that improves placements learns from
    further greedy improvements.

    Source: DAgger (Ross et al. 2011, arXiv 1011.0686); the cost of every choice, not a single label, as in
    AggreVaTe (Ross and Bagnell 2014, arXiv 1406.5979).
    """

    name = "on-policy imitation"
    share = 0.15
    unit = "rounds"
    rate = "dagger_rate"

    def __init__(self, state: TrainingState, imitation: Imitation) -> None:
        super().__init__(state)
        self._imitation = imitation
        self.planned = state.config.planned_dagger_rounds
        self._first_seed = state.config.imitation_epochs if state.config.demonstrations else 0

    @property
    def first_step_s(self) -> float:
        """Seconds of the passes of a round, at the pace of imitation."""
        return PASSES_PER_ROUND * self._imitation.step_s

    def learn(self) -> dict[str, float]:
        """Makes one round: places, costs every single move, and learns from that."""
        rate = self.set_learning_rate()
        seed = (self.state.context.seed, self._first_seed + self.steps)
        learner = ImitationLearner(self._trajectories(seed), seed)
        metrics = [self.epoch(learner, number) for number in range(PASSES_PER_ROUND)]
        return metrics[-1] | {"train/learning_rate": rate}

    def _trajectories(self, seed: Sequence[int]) -> list[Trajectory]:
        state = self.state
        if state.policy.mdp_config.improves:
            return self.improvements(1, seed)
        rng = np.random.default_rng(seed)
        order = state.config.order[int(rng.integers(len(state.config.order)))]
        placed = own_placements(state.policy, state.problems, order=order, rng=rng)
        return replay_demonstrations(
            state.problems, placed, orders=(order,), mdp_config=state.policy.mdp_config, seed=seed
        )
