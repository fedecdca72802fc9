"""Step times over a baseline's, graph by graph: mean, interval over graphs, spread over trainings."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from agent.evaluation.comparison.intervals import Interval, nested_interval
from agent.evaluation.comparison.ratios import log_time
from agent.evaluation.results import Trial, TrialJournal, with_greatest_bounds
from graphs.system.errors import InputError
from graphs.system.json_files import read_json

LOWER_BOUND = "lower bound"
"""The bound below all step times, compared as if it were a placer."""
ROW_COLUMNS = ("ratio", "low", "high", "spread_over_trainings", "graphs", "out_of_memory", "wall_s")
"""Columns of `row_cells`."""

Where = tuple[str, str]
"""A graph and a cluster."""
Ratios = dict[Where, list[float]]
"""Logarithms of step times over another's, one per training."""


@dataclass
class Comparison:
    """Step times of a placer over a baseline's, on the graphs where the baseline's placements are feasible.

    Attributes:
        ratios: logarithms of its step times over the baseline's, where its placements are feasible too.
        wall_s: seconds that each of its trials took.
        out_of_memory: graphs on which one of its placements is not feasible.
    """

    ratios: Ratios = field(default_factory=lambda: defaultdict(list))
    wall_s: list[float] = field(default_factory=list)
    out_of_memory: set[Where] = field(default_factory=set)

    @property
    def centre(self) -> float:
        """Geometric mean over graphs."""
        return float(np.exp(_means(self.ratios).mean()))

    def above(self, ratio: float) -> dict[Where, float]:
        """Ratios above a threshold by graph and cluster, the greatest first."""
        means = dict(zip(self.ratios, np.exp(_means(self.ratios)).tolist(), strict=True))
        greatest_first = sorted(means, key=lambda where: -means[where])
        return {where: means[where] for where in greatest_first if means[where] > ratio}


def read_trials(folder: Path) -> tuple[Trial, ...]:
    """Read a folder that `evaluate.py` has written, even if it was interrupted.

    Raises:
        InputError: it holds no evaluation.
    """
    if not isinstance(read_json(folder / "settings.json"), dict):
        raise InputError(f"{folder}: holds no evaluation; give a folder that evaluate.py --out wrote")
    trials = TrialJournal(folder / "journal.jsonl").trials
    return tuple(with_greatest_bounds(list(trials.values())))


def against_baseline(folders: Iterable[Path], baseline: str) -> dict[str, Comparison]:
    """Compare each placer and the lower bound with a baseline in the same evaluation, graph by graph.

    Args:
        folders: of evaluations, one per training.
        baseline: name of a placer.

    Returns:
        By placer.
    """
    compared: dict[str, Comparison] = defaultdict(Comparison)
    for folder in folders:
        by_where: dict[Where, dict[str, list[Trial]]] = defaultdict(lambda: defaultdict(list))
        for trial in read_trials(folder):
            by_where[trial.graph, trial.cluster][trial.placer].append(trial)
        for where, by_placer in by_where.items():
            of_baseline = by_placer.get(baseline, [])
            if (baseline_log_s := log_time(of_baseline)) is not None:
                _compare(compared, where, by_placer, baseline_log_s, of_baseline[0].lower_bound_s)
    return compared


def _compare(
    compared: dict[str, Comparison],
    where: Where,
    by_placer: Mapping[str, Sequence[Trial]],
    baseline_log_s: float,
    bound_s: float,
) -> None:
    """Add the trials on one graph and cluster in one evaluation."""
    if bound_s:
        compared[LOWER_BOUND].ratios[where].append(float(np.log(bound_s)) - baseline_log_s)
    for placer, trials in by_placer.items():
        compared[placer].wall_s += [trial.wall_s for trial in trials]
        if (log_s := log_time(trials)) is not None:
            compared[placer].ratios[where].append(log_s - baseline_log_s)
        else:
            compared[placer].out_of_memory.add(where)


def interval(ratios: Ratios) -> Interval:
    """Geometric mean over graphs, and its 95 % interval by resampling them."""
    return nested_interval([[[mean] for mean in _means(ratios)]])


def spread(ratios: Ratios) -> float | None:
    """Standard deviation over trainings of the geometric mean; None for fewer than two."""
    by_training = [np.exp(np.mean(column)) for column in zip(*ratios.values(), strict=False)]
    return stdev(by_training) if len(by_training) > 1 else None


def describe(compared: Comparison | None) -> str:
    """Cell of a table: geometric mean, 95 % interval over graphs, spread over trainings, out of memory."""
    if compared is None:
        return ""
    if not compared.ratios:
        return "all out of memory"
    centre, low, high = interval(compared.ratios)
    over_trainings = spread(compared.ratios)
    spread_text = f"; ± {over_trainings:.3f}" if over_trainings else ""
    n_lost = len(compared.out_of_memory)
    memory_text = f"; out of memory: {n_lost}" if n_lost else ""
    return f"{centre:.3f} ({low:.3f} to {high:.3f}{spread_text}{memory_text})"


def row_cells(compared: Comparison) -> tuple[object, ...]:
    """The numbers of `describe` for a CSV file, in the order of `ROW_COLUMNS`; None is an empty cell."""
    centre, low, high = interval(compared.ratios) if compared.ratios else (None, None, None)
    return (
        centre,
        low,
        high,
        spread(compared.ratios) if compared.ratios else None,
        len(compared.ratios),
        len(compared.out_of_memory),
        fmean(compared.wall_s) if compared.wall_s else None,
    )


def _means(ratios: Ratios) -> np.ndarray:
    return np.array([fmean(logs) for logs in ratios.values()])
