"""Step times of searches and policies over what `refine` had found in the same processor time."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Iterable

from agent.evaluation.comparison.ratios import Where, geometric_mean
from agent.evaluation.results import Key, Trial
from agent.placers.base import PLACERS
from agent.policy.placers import LEARNED

BASELINE = "refine"
"""The best placer that learned nothing."""
LEAST_SHARE = 0.8
"""Share of a trial's time, by the processor's clock or the wall's, for which the baseline must have run."""


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
        if _is_search(trial.placer) and trial.feasible and trial.step_time_s > 0:
            beside = [_found_beside(search, trial) for search in searches[trial.graph, trial.cluster]]
            known = [step_s for step_s in beside if step_s]
            if trial.placer == BASELINE:
                ratios[trial.key] = 1.0
            elif len(known) == len(beside) and (beside_s := geometric_mean(known)):
                ratios[trial.key] = trial.step_time_s / beside_s
    return ratios


def _is_search(placer: str) -> bool:
    return placer in LEARNED or (placer in PLACERS and not PLACERS[placer].is_start)


def _found_beside(search: Trial, trial: Trial) -> float | None:
    """The shortest step that a search had found in a trial's time; None if it found none or ended before."""
    own_s, seconds = _processor_s(search), _processor_s(trial)
    if not search.history or (own_s < LEAST_SHARE * seconds and search.wall_s < LEAST_SHARE * trial.wall_s):
        return None
    scale = own_s / search.wall_s if search.wall_s else 1.0
    at = bisect_right(search.history, seconds, key=lambda improvement: improvement.seconds * scale)
    return search.history[max(at - 1, 0)].step_time_s


def _processor_s(trial: Trial) -> float:
    """Processor seconds; wall seconds where those are not known."""
    return trial.cpu_s or trial.wall_s
