"""The selection of the policy to keep: the newest of those that place the graphs not held out best."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from copy import deepcopy
from itertools import chain, islice

import numpy as np
from numpy.typing import ArrayLike

from agent.policy.policy import Policy
from agent.policy.seen import describe_seen
from agent.policy.serialization import PolicyCard, save_policy
from agent.training.metrics import EVALUATED_REWARD, SCORE
from agent.training.problems import validation_problems
from agent.training.state import TrainingState
from agent.training.validation import RelativeMetrics, annealing_s, drawn, ratios_over_orders, some
from envs.placement.render import Picture

REFERENCES = "references.json"
"""File of a run that keeps what annealing finds."""
MOST = 128
"""Graphs of each use that are placed at most, drawn at random; more would take the time to learn."""
SURELY = 2.0
"""Standard errors by which a policy is surely worse than another."""


class PolicySelection:
    """Evaluates the averaged policy, and saves it into the run's folder unless an earlier one is better.

    A greedy step time is noisy. On the validation graphs alone chance would choose the policy, so the graphs
    it trains on count as well; on the clusters as they are, as on randomized ones a few graphs out of memory
    would outweigh what all others gain. The least of many scores is still partly luck, and choosing it
    discards what was learned later. If there are validation graphs, the policy is meant for other graphs, so
    the newest one is kept unless it is surely worse than the one with the least score. The policy that the
    training starts from is a candidate as well: one that is at all worse never replaces it.

    Args:
        seen: graphs that the policy to start from was trained on.

    Attributes:
        best_score: geometric mean of the step time over that of one device, by the policy that is kept.
        best_decisions: when it was reached; 0 = at the start.
        start_score: that of the policy that the training starts from.
        least: logarithms of these ratios, by the policy of the least mean.
    """

    def __init__(self, state: TrainingState, seen: Iterable[Mapping[str, str]]) -> None:
        self._state = state
        self.best_score, self.best_decisions, self.start_score = float("inf"), 0, float("inf")
        self.least: list[float] = []
        graphs, config = state.context.graphs, state.config
        self._slack = SURELY if graphs.validation else 0.0
        self._train = some(validation_problems(graphs.train, config) or state.problems, MOST)
        validation = some(validation_problems(graphs.validation, config) or state.problems, MOST)
        held_out = some(validation_problems(graphs.held_out, config), MOST)
        folder, announce = state.context.folder, state.context.announce
        compared = {"validation": validation, "held_out": held_out, "trained_on": some(self._train)}
        found_s = iter(annealing_s([*chain(*compared.values())], folder / REFERENCES, announce))
        self._metrics = {
            use: RelativeMetrics(problems, [*islice(found_s, len(problems))])
            for use, problems in compared.items()
        }
        shown = describe_seen((*graphs.train, *graphs.validation))
        all_seen = tuple({entry["sha256"]: entry for entry in (*seen, *shown)}.values())
        self._card = PolicyCard(state.policy.network.shape, all_seen, config.to_json())

    def drawn(self) -> Picture:
        """Draws the step of the averaged policy's placement of a held-out graph, or of one for validation."""
        policy = Policy(self._state.averaged_network, self._state.policy.mdp_config)
        problems = [*self._metrics["held_out"].problems, *self._metrics["validation"].problems]
        return drawn(policy, problems[0], self._state.config.order[0])

    def keep_start(self) -> None:
        """Saves the policy that the training starts from, after the first update, unless that was better."""
        if not self.best_decisions:
            self.best_score = self.start_score
            save_policy(self._state.context.folder, self._start, self._card)

    def evaluate(self) -> dict[str, float]:
        """Places all graphs greedily; returns the score and the step times by use, reference and family."""
        state, config = self._state, self._state.config
        policy = Policy(state.averaged_network, state.policy.mdp_config)
        problems = {use: each.problems for use, each in self._metrics.items()} | {"train": self._train}
        ratios = {
            use: ratios_over_orders(policy, problems[use], config.order, state.reward, config.threads)
            for use in ("train", "validation", "held_out")
        }
        ratios["trained_on"] = some(ratios["train"])
        metrics: dict[str, float] = {}
        for use, relative in self._metrics.items():
            metrics |= relative.of(use, enumerate(ratios[use]))
        logs = np.log(ratios["train"] + ratios["validation"])
        score = float(np.exp(logs.mean()))
        if not state.iteration:
            self.start_score, self.least = score, logs.tolist()
            self._start = deepcopy(state.averaged_network)
        elif score < self.start_score and (not self.least or is_better(logs, self.least, self._slack)):
            self.best_score, self.best_decisions = score, state.decisions
            save_policy(state.context.folder, state.averaged_network, self._card)
        if not self.least or is_better(logs, self.least):
            self.least = logs.tolist()
        return metrics | {SCORE: score, EVALUATED_REWARD: -float(np.mean(ratios["validation"]))}


def is_better(logs: ArrayLike, others: ArrayLike, slack: float = 0.0) -> bool:
    """Says whether the mean of some logarithms is less than that of others.

    Args:
        logs, others: of the ratios of two policies on the same graphs, (n,) each.
        slack: standard errors of the mean difference by which the first may be greater.
    """
    behind = np.subtract(logs, others)
    return bool(behind.mean() < slack * behind.std() / len(behind) ** 0.5)
