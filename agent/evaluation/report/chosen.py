"""The graphs that are shown one by one: those on which two placers differ most."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from agent.evaluation.comparison.ratios import Run, Where, by_run, log_time
from agent.evaluation.results import DATA_PARALLEL, Trial
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
    return sorted(_losses(trials), key=lambda loss: -loss.ratio)


def _losses(trials: Sequence[Trial]) -> Iterator[Loss]:
    times: dict[Where, dict[Run, float]] = {}
    for run, wheres in by_run(trials).items():
        if run[0] != DATA_PARALLEL:
            for where, each in wheres.items():
                if (log := log_time(each)) is not None:
                    times.setdefault(where, {})[run] = log
    for where, by_placer in times.items():
        learned, other = _best(by_placer, True), _best(by_placer, False)
        if learned and other and by_placer[learned] > by_placer[other] + LEAST_LOSS:
            yield Loss(where, learned, other, math.exp(by_placer[learned] - by_placer[other]))


def _best(times: Mapping[Run, float], learned: bool) -> Run | None:
    return min((run for run in times if (run[0] in LEARNED) == learned), key=times.__getitem__, default=None)
