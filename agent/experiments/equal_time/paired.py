"""Placers against a baseline in the same evaluation, with intervals over families, graphs and seeds."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import fmean

from agent.evaluation.comparison.intervals import Interval
from agent.evaluation.comparison.ratios import by_run, compared, logs_over, ratio_to_single
from agent.evaluation.results import Trial

LEVEL = 1e-3
"""Step times that differ by less, as a share, are level."""


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

    @property
    def cell(self) -> str:
        """The ratio with its interval, as the cell of a table."""
        return str(Interval(self.ratio, self.low, self.high))


def pair(trials: Sequence[Trial], baseline: str, seconds: float) -> Iterator[Paired]:
    """Compares each placer with the baseline."""
    runs = by_run(trials)
    reference = next((own for (placer, _), own in runs.items() if placer == baseline), {})
    for (placer, _), own in runs.items():
        logs = logs_over(own, reference)
        shared = [trial for where in logs for trial in own[where]]
        ratio, to_single = compared(own, reference), ratio_to_single(shared)
        if ratio and to_single:
            means = [fmean(seeds) for seeds in logs.values()]
            yield Paired(
                placer=placer,
                seconds=seconds,
                ratio=ratio.mean,
                low=ratio.low,
                high=ratio.high,
                to_single=to_single.mean,
                wins=sum(mean < -LEVEL for mean in means),
                losses=sum(mean > LEVEL for mean in means),
                graphs=len(logs),
                evaluations=fmean(trial.evaluations for trial in shared),
                cpu_s=fmean(trial.cpu_s for trial in shared),
            )
