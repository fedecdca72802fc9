"""The report at the end of a study: trials, effects of components, settings compared."""

from __future__ import annotations

import csv
import math
from collections import Counter
from pathlib import Path
from statistics import fmean, stdev

from agent.studies.ablation import effects, table, write_effects
from agent.studies.record import COMPLETE, FAILED, PRUNED, STALE, Attempt
from agent.studies.study_folder import Study
from agent.training.run_folder import policy_folder


def closing_lines(study: Study, *, all_ended: bool, began: bool) -> list[str]:
    """Says what came of a study, and where it is; writes the effects of an ablation.

    Args:
        all_ended: whether no trial is left to be done.
        began: whether a trial was run this time.
    """
    attempts = list(study.record.attempts.values())
    counts = Counter(each.status for each in attempts)
    ended = [f"{counts[status]} {status}" for status in (COMPLETE, PRUNED, FAILED) if counts[status]]
    lines = [f"{study.folder}: {', '.join(ended) or 'no trial ended'}"]
    if not began:
        lines[0] += "; it was finished before, so nothing was run"
    if study.base.context == "ablation" and (found := effects(study.record)):
        write_effects(study.folder, found)
        lines += [*table(found), f"effects: {study.folder / 'effects.csv'}"]
    else:
        lines += compared(attempts)
    if study.config.cold_control:
        lines += warm_against_cold(attempts, study.base.init)
    lines.append(f"trials: {study.folder / 'trials.csv'}")
    lines.append(f"curves: tensorboard --logdir {study.folder}")
    if not all_ended:
        lines.append("stopped; run the same command again to resume")
    return lines


def compared(attempts: list[Attempt]) -> list[str]:
    """A line for each combination of settings, the best first: means over its seeds, and their spread."""
    done = [each for each in attempts if each.status == COMPLETE and each.best_score is not None]
    by_settings: dict[tuple[str, str], list[Attempt]] = {}
    for each in done:
        by_settings.setdefault((each.mode, each.component), []).append(each)
    scores = {key: [each.best_score or 0.0 for each in some] for key, some in by_settings.items()}
    lines = [f"{'/single':>7} {'±':>6} {'held out':>8} {'seeds':>5}  settings"] if done else []
    for key in sorted(scores, key=lambda key: fmean(scores[key])):
        held_out = [each.held_out for each in by_settings[key] if each.held_out is not None]
        spread = f"{stdev(scores[key]):.3f}" if len(scores[key]) > 1 else "-"
        shown = f"{fmean(held_out):.3f}" if held_out else "-"
        settings = " ".join(filter(None, key)).removeprefix("grid ").removeprefix("sampled ")
        n_seeds = len(scores[key])
        lines.append(f"{fmean(scores[key]):>7.3f} {spread:>6} {shown:>8} {n_seeds:>5}  {settings}")
    return lines


def warm_against_cold(attempts: list[Attempt], init: str) -> list[str]:
    """Compares trials from a policy with those from random weights, on the same settings and seeds.

    The decisions that the policy to start from had learned from count once with and once without.
    """
    done = {each.trial: each for each in attempts if each.status == COMPLETE and each.best_score is not None}
    pairs = [(done[name], done[f"{name}-cold"]) for name in done if f"{name}-cold" in done]
    if not pairs:
        return []
    ratios = [(warm.best_score or 1.0) / (cold.best_score or 1.0) for warm, cold in pairs]
    mean = math.exp(fmean(map(math.log, ratios)))
    decisions = fmean(warm.decisions for warm, _ in pairs), fmean(cold.decisions for _, cold in pairs)
    sunk = _decisions_before(init)
    before = f"{sunk:,} before that, in its study" if sunk is not None else "those before that are not known"
    return [
        f"from {init}: {mean:.3f} of the step time from random weights, over {len(pairs)} pairs,",
        f"by {decisions[0]:,.0f} decisions ({before}) against {decisions[1]:,.0f}",
    ]


def _decisions_before(init: str) -> int | None:
    """Decisions of the study that a policy comes from; None without one, or where its table is damaged."""
    record = Path(policy_folder(init)).parent.parent / "trials.csv"
    if not record.is_file():
        return None
    try:
        with record.open(encoding="utf-8") as file:
            return sum(int(row["decisions"]) for row in csv.DictReader(file) if row["status"] != STALE)
    except (KeyError, TypeError, ValueError, csv.Error):
        return None


def duration(seconds: float) -> str:
    """Seconds in words."""
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} minutes"
