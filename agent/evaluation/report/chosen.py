"""The graphs that are shown one by one: those on which two placers differ most."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from agent.evaluation.comparison.ratios import Where
from agent.evaluation.results import Trial
from agent.placers.base import PLACERS

MOST = 6
"""Graphs that are shown one by one; each takes some hundred kilobytes."""


@dataclass(frozen=True)
class Pair:
    """The best trials of two placers on one graph and cluster.

    Attributes:
        left, right: of the best placer with a policy and of the best other one; where there are none of a
            kind, of the best and the worst placer.
    """

    left: Trial
    right: Trial

    @property
    def ratio(self) -> float:
        """Step time of the left one over that of the right one."""
        return self.left.step_time_s / self.right.step_time_s


def is_learned(trial: Trial) -> bool:
    """Says whether a placer that uses a policy made a trial."""
    return trial.placer in PLACERS and PLACERS[trial.placer].is_learned


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
