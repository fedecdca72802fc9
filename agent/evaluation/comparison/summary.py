"""Results per family: geometric means over graphs, their spread over seeds, evaluations and seconds."""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from itertools import groupby
from pathlib import Path
from statistics import fmean, stdev

from agent.evaluation.comparison.ratios import Where, geometric_mean, ratio_to_bound
from agent.evaluation.results import Key, Trial, best_times, ratio_to_best
from agent.placers.base import PLACERS
from graphs.system.csv_files import write_csv
from graphs.system.errors import four_digits

DATA_PARALLEL_NOTE = (
    "data-parallel is no placement: each device computes a batch of its own, and the time is that of a step "
    "over the number of batches, so it may be below the bound."
)
SINGLE_NOTE = (
    "the fastest single device that has the memory; * where none has it for some graph: there the fastest, "
    "as if it had"
)
SIMULATED = (
    "Step times are what the described cluster's runner would take; simulated, not measured. On uncalibrated "
    "clusters the times of ops come from datasheets."
)
BASELINE = "refine"
"""The best placer that learned nothing."""
LEAST_SHARE = 0.8
"""Share of a trial's time, by the processor's clock or the wall's, for which the baseline must have run."""


@dataclass(frozen=True)
class Line:
    """One placer (in one order) on one family and cluster.

    Attributes:
        seen: what the evaluation's policy was shown of these graphs in training: "yes", "topology" or "no".
        step_time_s: geometric mean in seconds over the trials whose placement is feasible; None if none is.
        ratio_to_single, ratio_to_best: geometric means over the same trials.
        seed_spread: sample standard deviation over seeds of the geometric mean of `ratio_to_single`; None for
            one seed. Seeds are compared on the graphs on which all were tried and are feasible.
        ratio_to_bound: geometric mean of step time over lower bound, at least 1; None for data parallelism,
            which the bound does not hold for.
        feasible_share: share of the trials whose placement is feasible.
        evaluations, wall_s, cpu_s: mean per trial.
        ratio_to_refine: geometric mean of step time over what `refine` had found in the same processor time;
            None if that is not known for each feasible trial.
        single_fits: whether each graph has a single device with the memory for it.
    """

    family: str
    cluster: str
    placer: str
    order: str
    seen: str
    graphs: int
    seeds: int
    step_time_s: float | None
    ratio_to_single: float | None
    seed_spread: float | None
    ratio_to_best: float | None
    ratio_to_bound: float | None
    feasible_share: float
    evaluations: float
    wall_s: float
    granularity: str
    cpu_s: float
    ratio_to_refine: float | None
    single_fits: bool


COLUMNS = tuple(item.name for item in fields(Line))


def summarise(trials: Sequence[Trial]) -> list[Line]:
    """One line per family, cluster, placer, order, whether seen and granularity, ordered as the trials."""
    best, in_equal_time = best_times(trials), ratios_to_baseline(trials)
    groups: dict[tuple[str, str, str, str, str, str], list[Trial]] = defaultdict(list)
    for trial in trials:
        key = (trial.family, trial.cluster, trial.placer, trial.order, trial.seen, trial.granularity)
        groups[key].append(trial)
    return [
        Line(
            family=family,
            cluster=cluster,
            placer=placer,
            order=order,
            seen=seen,
            graphs=len({trial.graph for trial in group}),
            seeds=len({trial.seed for trial in group}),
            step_time_s=geometric_mean(trial.step_time_s for trial in group if trial.feasible),
            ratio_to_single=geometric_mean(trial.ratio_to_single for trial in group),
            seed_spread=_seed_spread(group),
            ratio_to_best=geometric_mean(ratio_to_best(trial, best) for trial in group),
            ratio_to_bound=geometric_mean(ratio_to_bound(trial) for trial in group),
            feasible_share=fmean(trial.feasible for trial in group),
            evaluations=fmean(trial.evaluations for trial in group),
            wall_s=fmean(trial.wall_s for trial in group),
            granularity=granularity,
            cpu_s=fmean(trial.cpu_s for trial in group),
            ratio_to_refine=_mean_of_all([in_equal_time.get(trial.key) for trial in group if trial.feasible]),
            single_fits=all(trial.single_fits for trial in group),
        )
        for (family, cluster, placer, order, seen, granularity), group in groups.items()
    ]


def write_summary(path: Path, lines: Iterable[Line]) -> None:
    """Write `summary.csv` atomically; None is an empty cell."""
    rows = (
        [str(cell).lower() if isinstance(cell, bool) else cell for cell in astuple(line)] for line in lines
    )
    write_csv(path, COLUMNS, rows)


def _mean_of_all(values: Sequence[float | None]) -> float | None:
    return None if None in values else geometric_mean(values)


def _seed_spread(group: Sequence[Trial]) -> float | None:
    n_seeds = len({trial.seed for trial in group})
    feasible = Counter(trial.graph for trial in group if trial.feasible)
    by_seed: dict[int, list[float | None]] = defaultdict(list)
    for trial in group:
        if feasible[trial.graph] == n_seeds:
            by_seed[trial.seed].append(trial.ratio_to_single)
    means = [mean for values in by_seed.values() if (mean := geometric_mean(values)) is not None]
    return stdev(means) if len(means) > 1 else None


def ratios_to_baseline(trials: Iterable[Trial]) -> dict[Key, float]:
    """Step time of each feasible trial over that of `refine` at the trial's processor seconds, by key.

    `refine` itself has 1. Over its seeds the geometric mean counts, and what it finds first counts from the
    beginning. Its times are wall seconds and are scaled to processor seconds.

    Left out are heuristics that it begins with, placements that were given, and trials for which it was not
    run, found nothing, or ran less than `LEAST_SHARE` as long.
    """
    trials = list(trials)
    searches: dict[Where, list[Trial]] = defaultdict(list)
    for trial in trials:
        if trial.placer == BASELINE:
            searches[trial.graph, trial.cluster].append(trial)
    ratios = {}
    for trial in trials:
        is_search = trial.placer in PLACERS and PLACERS[trial.placer].is_search
        if is_search and trial.feasible and trial.step_time_s > 0:
            beside = [_found_beside(search, trial) for search in searches[trial.graph, trial.cluster]]
            steps_s = [step_s for step_s in beside if step_s]
            if trial.placer == BASELINE:
                ratios[trial.key] = 1.0
            elif len(steps_s) == len(beside) and (beside_s := geometric_mean(steps_s)):
                ratios[trial.key] = trial.step_time_s / beside_s
    return ratios


def _found_beside(search: Trial, trial: Trial) -> float | None:
    """The shortest step that a search had found in a trial's time; None if it found none or ended before."""
    own_s, seconds = _processor_s(search), _processor_s(trial)
    if not search.history or (own_s < LEAST_SHARE * seconds and search.wall_s < LEAST_SHARE * trial.wall_s):
        return None
    scale = own_s / search.wall_s if search.wall_s else 1.0
    end = bisect_right(search.history, seconds, key=lambda improvement: improvement.seconds * scale)
    return search.history[max(end - 1, 0)].step_time_s


def _processor_s(trial: Trial) -> float:
    """Processor seconds; wall seconds where those are not known."""
    return trial.cpu_s or trial.wall_s


Case = tuple[str, str, str, str]
"""Family, cluster, what was seen in training, and granularity."""
SEEN_NOTES = {
    "yes": " (seen by the policy in training)",
    "topology": " (the policy saw graphs of this structure in training)",
}


def by_case(lines: Sequence[Line]) -> Iterator[tuple[Case, list[Line]]]:
    """Lines by case: the shortest step first, those never feasible last."""

    def case(line: Line) -> Case:
        return line.family, line.cluster, line.seen, line.granularity

    def rank(line: Line) -> tuple[bool, float]:
        return line.ratio_to_single is None, line.ratio_to_single or 0.0

    for key, part in groupby(sorted(lines, key=case), key=case):
        yield key, sorted(part, key=rank)


def title(case: Case, uncalibrated: Mapping[str, str] | None = None) -> str:
    """Heading of the table of a case; it says what one decision places, if not an op.

    Args:
        uncalibrated: notes of clusters that are not calibrated, or only in part.
    """
    family, cluster, seen, granularity = case
    note = f" ({uncalibrated[cluster]})" if uncalibrated and cluster in uncalibrated else ""
    unit = "" if granularity == "op" else f", placed by {granularity}"
    return f"{family or 'no family'} on {cluster}{note}{unit}{SEEN_NOTES.get(seen, '')}"


def figures(line: Line) -> tuple[str, ...]:
    """Formats step time, the ratios to others and their spread, what is feasible, and what it cost."""
    return (
        milliseconds(line.step_time_s) + "*" * (0 < line.feasible_share < 1),
        to_single(line),
        number(line.seed_spread),
        number(line.ratio_to_best),
        number(line.ratio_to_bound),
        number(line.ratio_to_refine),
        f"{line.feasible_share:.0%}",
        f"{line.evaluations:,.0f}",
        f"{line.cpu_s:.2g}",
        f"{line.wall_s:.2g}",
    )


def to_single(line: Line) -> str:
    """Formats the ratio to the fastest single device, with a * where none has the memory."""
    is_marked = line.ratio_to_single is not None and not line.single_fits
    return number(line.ratio_to_single) + ("*" if is_marked else "")


def number(value: float | None) -> str:
    """Three decimals, or a dash."""
    return "-" if value is None else f"{value:.3f}"


def milliseconds(seconds: float | None) -> str:
    """Seconds as milliseconds with four digits or more, or a dash."""
    return "-" if seconds is None else four_digits(1e3 * seconds)
