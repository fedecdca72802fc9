"""Step times over a rival's, graph by graph, and what the choice of graphs and of trainings makes of them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from agent.evaluation.results import Journal, Trial
from graphs.io.json_files import read_json

LOWER_BOUND = "lower bound"
"""What no placement is faster than; it is compared as if it were a placer."""
RESAMPLES = 2_000

Where = tuple[str, str]
"""A graph and a cluster."""
Ratios = dict[Where, list[float]]
"""Logarithms of step times over another's, one per training."""


@dataclass
class Comparison:
    """What a placer makes of the graphs on which its rival finds a placement that fits.

    Attributes:
        ratios: of its step times over the rival's, where its placement fits too.
        wall_s: what each placement took.
        misfits: graphs on which a placement does not fit.
    """

    ratios: Ratios = field(default_factory=lambda: defaultdict(list))
    wall_s: list[float] = field(default_factory=list)
    misfits: set[Where] = field(default_factory=set)

    @property
    def centre(self) -> float:
        """Geometric mean over graphs."""
        return float(np.exp(_means(self.ratios).mean()))

    def above(self, ratio: float) -> dict[Where, float]:
        """Where its step time is more than so many times the rival's, and how many times; the worst first."""
        means = dict(zip(self.ratios, np.exp(_means(self.ratios)).tolist(), strict=True))
        worst_first = sorted(means, key=lambda where: -means[where])
        return {where: means[where] for where in worst_first if means[where] > ratio}


def read_trials(folder: Path) -> tuple[Trial, ...]:
    """Read a folder that `evaluate.py` has written, even if it was interrupted.

    Raises:
        ValueError: it holds no evaluation.
    """
    if not isinstance(read_json(folder / "settings.json"), dict):
        raise ValueError(f"{folder}: holds no evaluation; give a folder that evaluate.py --out wrote")
    journal = Journal(folder / "journal.jsonl")
    journal.close()
    return tuple(journal.trials.values())


def against_rival(folders: Iterable[Path], rival: str) -> dict[str, Comparison]:
    """Compare, graph by graph, each placer and the lower bound with the rival in the same evaluation.

    Returns:
        By placer.
    """
    compared: dict[str, Comparison] = defaultdict(Comparison)
    for folder in folders:
        by_where: dict[Where, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
        for trial in read_trials(folder):
            by_where[trial.graph, trial.cluster][trial.placer].append(trial)
        for where, by_placer in by_where.items():
            rivals = by_placer.get(rival)
            if not rivals or not all(trial.feasible for trial in rivals):
                continue
            of_rival, bound_s = _log_time(rivals), rivals[0].lower_bound_s
            if bound_s:
                compared[LOWER_BOUND].ratios[where].append(float(np.log(bound_s)) - of_rival)
            for placer, trials in by_placer.items():
                compared[placer].wall_s += [trial.wall_s for trial in trials]
                if all(trial.feasible for trial in trials):
                    compared[placer].ratios[where].append(_log_time(trials) - of_rival)
                else:
                    compared[placer].misfits.add(where)
    return compared


def interval(ratios: Ratios) -> tuple[float, float, float]:
    """Geometric mean, and the 95 % interval that resampling the graphs gives."""
    means = _means(ratios)
    drawn = np.random.default_rng(0).choice(means, (RESAMPLES, len(means))).mean(axis=1)
    centre, low, high = np.exp([means.mean(), *np.quantile(drawn, [0.025, 0.975])])
    return float(centre), float(low), float(high)


def spread(ratios: Ratios) -> float | None:
    """Standard deviation over trainings of the geometric mean; None for fewer than two."""
    by_training = [np.exp(np.mean(column)) for column in zip(*ratios.values(), strict=False)]
    return stdev(by_training) if len(by_training) > 1 else None


def describe(compared: Comparison | None) -> str:
    """Geometric mean, 95 % interval over graphs, spread over several trainings, and how many do not fit."""
    if compared is None:
        return ""
    if not compared.ratios:
        return "fits none"
    centre, low, high = interval(compared.ratios)
    over_trainings = spread(compared.ratios)
    spread_text = f"; ± {over_trainings:.3f}" if over_trainings else ""
    misfits_text = f"; no fit: {len(compared.misfits)}" if compared.misfits else ""
    return f"{centre:.3f} ({low:.3f} to {high:.3f}{spread_text}{misfits_text})"


def _means(ratios: Ratios) -> np.ndarray:
    return np.array([fmean(logs) for logs in ratios.values()])


def _log_time(trials: Iterable[Trial]) -> float:
    return fmean(float(np.log(trial.step_time_s)) for trial in trials)
