"""Placers against a baseline in the same evaluation, with intervals over families, graphs and seeds."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from agent.evaluation.comparison.intervals import nested_interval
from agent.evaluation.results import Trial

LEVEL = 1e-3
"""Step times that differ by less, as a share, are level."""
Logs = dict[str, dict[str, list[float]]]
"""Logarithms by family and graph, one per seed."""


@dataclass(frozen=True)
class Paired:
    """A placer over the baseline, on the graphs where both are feasible with every seed.

    Attributes:
        seconds: budget of both.
        ratio: geometric mean over graphs of the step time over the baseline's.
        low, high: its 95 % interval, from resampling families, graphs of a family and seeds of a graph.
        to_single: geometric mean of the step time over that of the fastest single device.
        wins, losses: graphs on which it is faster or slower by more than `LEVEL`, seeds taken together.
        cpu_s: mean processor seconds of a trial.
    """

    placer: str
    seconds: float
    ratio: float
    low: float
    high: float
    to_single: float
    wins: int
    losses: int
    graphs: int
    evaluations: float
    cpu_s: float

    def cell(self, value: str) -> str:
        """A value as the cell of a table: `ratio`, `wins`, `to_single` or `taken`."""
        return {
            "ratio": f"{self.ratio:.3f} ({self.low:.3f} to {self.high:.3f})",
            "wins": f"{self.wins} : {self.losses} of {self.graphs}",
            "to_single": f"{self.to_single:.3f}",
            "taken": f"{self.cpu_s:.3g}",
        }[value]


def pair(trials: Sequence[Trial], baseline: str, seconds: float) -> Iterator[Paired]:
    """Compares each placer with the baseline."""
    by_placer: dict[str, dict[tuple[str, str], list[Trial]]] = defaultdict(lambda: defaultdict(list))
    for trial in trials:
        by_placer[trial.placer][trial.family, trial.graph].append(trial)
    reference = {where: _log(own) for where, own in by_placer[baseline].items() if _feasible(own)}
    for placer, cases in by_placer.items():
        logs: Logs = defaultdict(dict)
        shared = [where for where, own in cases.items() if where in reference and _feasible(own)]
        for family, graph in shared:
            own = cases[family, graph]
            logs[family][graph] = [_log([each]) - reference[family, graph] for each in own]
        if shared:
            means = [fmean(seeds) for graphs in logs.values() for seeds in graphs.values()]
            ratio = nested_interval([list(graphs.values()) for graphs in logs.values()])
            yield Paired(
                placer=placer,
                seconds=seconds,
                ratio=ratio.mean,
                low=ratio.low,
                high=ratio.high,
                to_single=float(np.exp(fmean(_log_to_single(cases[where]) for where in shared))),
                wins=sum(mean < -LEVEL for mean in means),
                losses=sum(mean > LEVEL for mean in means),
                graphs=len(shared),
                evaluations=fmean(each.evaluations for where in shared for each in cases[where]),
                cpu_s=fmean(each.cpu_s for where in shared for each in cases[where]),
            )


def _feasible(trials: Sequence[Trial]) -> bool:
    return all(trial.feasible for trial in trials)


def _log(trials: Sequence[Trial]) -> float:
    return fmean(float(np.log(trial.step_time_s)) for trial in trials)


def _log_to_single(trials: Sequence[Trial]) -> float:
    return fmean(float(np.log(trial.step_time_s / trial.single_s)) for trial in trials)
