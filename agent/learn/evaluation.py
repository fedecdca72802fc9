"""Callbacks that compare a policy with search while it trains, keep the best and draw what it places."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from stable_baselines3.common.logger import Image, TensorBoardOutputFormat

from agent.learn.callbacks import ASKED, AverageWeights, UpdateCallback
from agent.learn.metrics import (
    BY_FAMILY,
    EVALUATED_REWARD,
    HELD_OUT,
    LAYOUT,
    OVER_SEARCH,
    PLACED,
    SCORE,
    TRAINED_ON,
    VALIDATION,
)
from agent.learn.references import annealing_s, some
from agent.policy.decoding import drawn, ratios_over_orders
from agent.policy.network import PlacementNetwork
from agent.policy.policy import Policy
from agent.policy.serialization import PolicyCard, save_policy
from envs.placement.reward import Reward, simulated
from envs.problem import Problem
from graphs.system.running_time import running_s

LOG_SPACED = frozenset(round(2 ** (k / 3)) for k in range(96))
"""Numbers of updates after which a policy is compared, where there is time; most is learned at first."""
SURELY = 2.0
"""Standard errors by which a policy is surely worse than another."""


@dataclass(frozen=True)
class Compared:
    """Problems that a policy places, and what annealing finds for some of them.

    Attributes:
        over_single: annealing's step time over that of the fastest single device, of the first problems.
    """

    problems: Sequence[Problem]
    over_single: Sequence[float]


class CompareWithSearch(UpdateCallback):
    """Places problems greedily at log-spaced numbers of updates, and logs the steps over annealing's.

    `compare/to_annealing` is the geometric mean over what annealing finds in 10,000 evaluations, and
    `compare/trained_on` the same of up to 16 problems that the policy learns from. The first comparison is
    before the first update. In TensorBoard it arranges the curves.

    Args:
        problems: problems that the policy does not learn from.
        validation: further ones, which help to choose the policy that is kept.
        trained_on: problems that the policy learns from; by default up to 16 of its environment.
        every: most updates between two comparisons.
        order: visiting order, or several, among which the problems are divided.
        average: callback whose policy is compared in place of the model's.
        reward: says what a step takes.
        most_s: seconds of all comparisons, beyond which only every `every`-th update is compared.
        references: file that keeps what annealing finds.
        announce: called with what goes on and which share of it is done.

    Attributes:
        orders: names of the orders.
        ratios: step times over the fastest single device's, by use of the problems, at the last comparison.
        first, last: numbers logged first and last.
        paused_s: seconds that comparisons of this process took.
    """

    def __init__(
        self,
        problems: Sequence[Problem],
        *,
        validation: Sequence[Problem] = (),
        trained_on: Sequence[Problem] | None = None,
        every: int = 15,
        order: str | Sequence[str] = "topo",
        average: AverageWeights | None = None,
        reward: Reward = simulated,
        most_s: float = float("inf"),
        references: Path | None = None,
        announce: Callable[[str, float], None] = lambda activity, share: None,
    ) -> None:
        super().__init__()
        self._given = {"held_out": list(problems), "validation": list(validation)}
        self._trained_on = trained_on
        self.orders = [order] if isinstance(order, str) else list(order)
        self._every = every
        self._average, self._reward, self._most_s = average, reward, most_s
        self._references, self._announce = references, announce
        self._sets: dict[str, Compared] = {}
        self.ratios: dict[str, list[float]] = {}
        self.first: dict[str, float] = {}
        self.last: dict[str, float] = {}
        self.paused_s, self._last_s, self.updates = 0.0, 0.0, -1

    @property
    def policy(self) -> Policy:
        """The policy that is compared."""
        return self._average.policy if self._average is not None else self.model.policy.placer

    @property
    def summary(self) -> str:
        """Says what the policy reached, before and after the training."""
        names = {OVER_SEARCH: "graphs not trained on", TRAINED_ON: "graphs trained on"}
        gains = [
            f"{what} {self.first[name]:.3f} -> {self.last[name]:.3f}"
            for name, what in names.items()
            if name in self.last
        ]
        return f"step time over annealing's, before and after training: {', '.join(gains)}"

    @property
    def drawn_problem(self) -> Problem:
        """The problem whose step is drawn: one that decides nothing, if there is one."""
        uses = (self._given["held_out"], self._given["validation"], self._sets["trained_on"].problems)
        return next(problems[0] for problems in uses if problems)

    def state_dict(self) -> dict[str, Any]:
        """Returns when it compared last, and the first and the last numbers."""
        return {"updates_compared": self.updates, "first": self.first, "last": self.last}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from such a state."""
        self.updates = int(saved["updates_compared"])
        self.first, self.last = dict(saved["first"]), dict(saved["last"])

    def _on_training_start(self) -> None:
        super()._on_training_start()
        self._resumed_at = self.model.updates or None
        self._sets = self._make_sets()
        for output in self.logger.output_formats:
            if isinstance(output, TensorBoardOutputFormat):
                output.writer.add_custom_scalars(LAYOUT)

    def _on_update(self) -> None:
        updates, ending = self.model.updates, self.model.ending
        if updates in (self.updates, self._resumed_at) or (ending == ASKED and not updates):
            return
        has_time = self.paused_s + self._last_s <= self._most_s
        is_due = updates % self._every == 0 or (updates in LOG_SPACED and has_time)
        if is_due or (self.is_last and ending != ASKED):
            began_s = running_s()
            self._compare()
            self._last_s = running_s() - began_s
            self.paused_s += self._last_s
            self.updates = updates

    def _compare(self) -> None:
        self.ratios = {
            use: ratios_over_orders(
                self.policy, compared.problems, self.orders, self._reward, self.model.policy.threads
            )
            for use, compared in self._sets.items()
            if compared.problems
        }
        self.last = self._metrics()
        self.first = self.first or self.last
        self.model.record(self.last)

    def _make_sets(self) -> dict[str, Compared]:
        learned = self._trained_on
        if learned is None:
            learned = some(self.training_env.get_attr("problems")[0])
        uses = {**self._given, "trained_on": learned}
        annealed = {
            use: problems if use != "trained_on" else some(problems) for use, problems in uses.items()
        }
        everything = [problem for problems in annealed.values() for problem in problems]
        found_s = iter(annealing_s(everything, self._references, self._announce))
        return {
            use: Compared(uses[use], [next(found_s) / problem.scale_s for problem in problems])
            for use, problems in annealed.items()
        }

    def _metrics(self) -> dict[str, float]:
        metrics, ratios = dict[str, float](), self.ratios
        scored = [*ratios.get("trained_on", ()), *ratios.get("validation", ())]
        means = {
            HELD_OUT: ratios.get("held_out", ()),
            VALIDATION: ratios.get("validation", ()),
            SCORE: scored,
        }
        metrics |= {name: geometric_mean(values) for name, values in means.items() if len(values)}
        by_family = defaultdict(list)
        for use, name in (("held_out", OVER_SEARCH), ("trained_on", TRAINED_ON)):
            placed = some(ratios[use]) if use == "trained_on" else ratios.get(use, [])
            over = np.divide(placed, self._sets[use].over_single)
            if len(over):
                metrics[name] = geometric_mean(over)
            if use == "held_out":
                for problem, ratio in zip(self._sets[use].problems, over, strict=True):
                    by_family[problem.graph.family].append(ratio)
        if len(by_family) > 1:
            metrics |= {f"{BY_FAMILY}{name}": geometric_mean(values) for name, values in by_family.items()}
        judged = next(ratios[use] for use in ("held_out", "validation", "trained_on") if use in ratios)
        return metrics | {EVALUATED_REWARD: -float(np.mean(judged))}


def geometric_mean(values: ArrayLike) -> float:
    """Returns the geometric mean of positive numbers."""
    return float(np.exp(np.mean(np.log(values))))


class KeepPolicy(UpdateCallback):
    """Keeps the newest of the policies that place the graphs not held out best, as files in a folder.

    A greedy step time is noisy. On the validation graphs alone chance would choose the policy, so the graphs
    it trains on count as well. The least of many scores is still partly luck, and choosing it discards what
    was learned later. If there are validation graphs, the policy is meant for other graphs, so the newest one
    is kept unless it is surely worse than the one with the least score. The policy that the training starts
    from is a candidate as well: one that is at all worse never replaces it.

    Args:
        compare: callback whose ratios decide; it comes before this one.
        card: content of the policy's file.

    Attributes:
        best_score: geometric mean of the step time over that of one device, by the policy that is kept.
        best_decisions: decisions until it was reached; 0 = at the start.
    """

    def __init__(self, compare: CompareWithSearch, folder: Path, card: PolicyCard) -> None:
        super().__init__()
        self._compare, self._folder, self._card = compare, folder, card
        self.best_score, self.best_decisions = float("inf"), 0
        self._start_score, self._least, self._seen = float("inf"), list[float](), -1
        self._start: PlacementNetwork | None = None

    def state_dict(self) -> dict[str, Any]:
        """Returns what was kept, and what later policies are compared with."""
        names = {"best_score": self.best_score, "best_decisions": self.best_decisions, "least": self._least}
        return names | {"start_score": self._start_score, "updates_seen": self._seen}

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from such a state."""
        self.best_score, self.best_decisions = saved["best_score"], saved["best_decisions"]
        self._least, self._start_score = list(saved["least"]), saved["start_score"]
        self._seen = int(saved["updates_seen"])

    def _on_update(self) -> None:
        updates, ratios = self.model.updates, self._compare.ratios
        network = self._compare.policy.network
        if updates == 1 and self._start is not None:
            self.best_score = self._start_score
            save_policy(self._folder, self._start, self._card)
            self._start = None
        if not ratios or self._compare.updates in (self._seen, -1):
            return
        self._seen = self._compare.updates
        validation = ratios.get("validation", [])
        logs = np.log([*ratios["trained_on"], *validation])
        score, slack = float(np.exp(logs.mean())), SURELY if validation else 0.0
        if updates == 0:
            self._start_score, self._least, self._start = score, logs.tolist(), deepcopy(network)
        elif score < self._start_score and (not self._least or is_better(logs, self._least, slack)):
            self.best_score, self.best_decisions = score, self.model.num_timesteps
            save_policy(self._folder, network, self._card)
        if not self._least or is_better(logs, self._least):
            self._least = logs.tolist()


def is_better(logs: ArrayLike, others: ArrayLike, slack: float = 0.0) -> bool:
    """Says whether the mean of some logarithms is less than that of others.

    Args:
        logs, others: logarithms of the ratios of two policies on the same graphs, (n,) each.
        slack: standard errors of the mean difference by which the first may be greater.
    """
    behind = np.subtract(logs, others)
    return bool(behind.mean() < slack * behind.std() / len(behind) ** 0.5)


class DrawPlacement(UpdateCallback):
    """Logs a picture of a graph's step as the policy places it, before the training and at each comparison.

    Args:
        compare: callback whose policy places a graph of its; it comes before this one.
    """

    def __init__(self, compare: CompareWithSearch) -> None:
        super().__init__()
        self._compare, self._drawn = compare, -1

    def _on_update(self) -> None:
        if not self._compare.ratios or self._compare.updates == self._drawn:
            return
        self._drawn = self._compare.updates
        order = self._compare.orders[0]
        picture = Image(drawn(self._compare.policy, self._compare.drawn_problem, order), "HWC")
        tags = PLACED[self.model.updates > 0 :]
        self.model.record(dict.fromkeys(tags, picture), "stdout", "log", "json", "csv")
