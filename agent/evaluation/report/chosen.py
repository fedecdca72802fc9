"""The graphs that are shown one by one: those on which two placers differ most."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

from agent.evaluation.comparison.ratios import Run, Where, by_run, log_time
from agent.evaluation.results import Trial
from agent.policy.placers import LEARNED

MOST = 6
"""Graphs that are shown one by one; each takes some hundred kilobytes."""


LEAST_LOSS = 0.001
"""Share by which a placer must be slower to have lost."""


@dataclass(frozen=True)
class Pair:
    """The best trials of two placers on one graph and cluster.

    Attributes:
        left, right: of the best learned placer and of the best other one; where there are none of a kind, of
            the best and the worst placer.
    """

    left: Trial
    right: Trial

    @property
    def ratio(self) -> float:
        """Step time of the left one over that of the right one."""
        return self.left.step_time_s / self.right.step_time_s


def is_learned(trial: Trial) -> bool:
    """Says whether a placer that uses a policy made a trial."""
    return trial.placer in LEARNED


def pairs(trials: Sequence[Trial]) -> list[Pair]:
    """Finds a pair per graph and cluster where two placers are feasible, the largest difference first."""
    by_where: dict[Where, list[Trial]] = {}
    for trial in trials:
        if trial.feasible and trial.is_placement and trial.step_time_s > 0:
            by_where.setdefault((trial.graph, trial.cluster), []).append(trial)
    found = [_pair(each) for each in by_where.values() if len({(t.placer, t.order) for t in each}) > 1]
    return sorted(found, key=lambda pair: -max(pair.ratio, 1 / pair.ratio))


def _pair(trials: Sequence[Trial]) -> Pair:
    ranked = sorted(trials, key=lambda trial: (trial.step_time_s, trial.seed))
    learned, others = [t for t in ranked if is_learned(t)], [t for t in ranked if not is_learned(t)]
    if learned and others:
        return Pair(learned[0], others[0])
    worst = next(t for t in reversed(ranked) if (t.placer, t.order) != (ranked[0].placer, ranked[0].order))
    return Pair(ranked[0], worst)


@dataclass(frozen=True)
class Loss:
    """A graph on which the best learned placer is slower than another one, by means over seeds."""

    where: Where
    learned: Run
    other: Run
    ratio: float


def losses(trials: Sequence[Trial]) -> list[Loss]:
    """Finds the graphs on which learned placers lost, the greatest loss first."""
    times: dict[Where, dict[Run, float]] = defaultdict(dict)
    for run, wheres in by_run(trial for trial in trials if trial.is_placement).items():
        for where, each in wheres.items():
            if (log := log_time(each)) is not None:
                times[where][run] = log
    found = []
    for where, logs in times.items():
        learned, other = (
            min((run for run in logs if (run[0] in LEARNED) == is_own), key=logs.__getitem__, default=None)
            for is_own in (True, False)
        )
        if learned and other and logs[learned] > logs[other] + LEAST_LOSS:
            found.append(Loss(where, learned, other, math.exp(logs[learned] - logs[other])))
    return sorted(found, key=lambda loss: -loss.ratio)
