"""The report of a study: how study trials ended, settings compared, and effects of components."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from statistics import fmean, stdev
from typing import NamedTuple

import numpy as np

from agent.contexts.local import CURVES
from agent.evaluation.comparison.ratios import crossed_interval
from agent.evaluation.terminal_report import text_table
from agent.studies.record import Attempt, Study
from agent.studies.trial_process import COMPLETE, FAILED, JUDGEMENT, PRUNED
from graphs.system.csv_files import write_csv
from graphs.system.json_files import FileFormatError, read_json

INCONCLUSIVE, ROUNDING = "inconclusive", 1e-6


def ending_line(attempt: Attempt) -> str:
    """Says how an attempt ended."""
    mode = "" if attempt.mode == "grid" else attempt.mode
    parts = [f"{attempt.trial}  {' '.join(filter(None, (mode, attempt.component)))}: {attempt.status}"]
    if attempt.best_score is not None:
        parts.append(f"{attempt.best_score:.3f} of one device")
    if attempt.held_out is not None:
        parts.append(f"held out {attempt.held_out:.3f}")
    wall_s = attempt.wall_s
    parts.append(attempt.error or (f"{wall_s:.0f} s" if wall_s < 100 else f"{wall_s / 60:.1f} minutes"))
    return ", ".join(parts)


def closing_lines(study: Study, *, all_ended: bool) -> list[str]:
    """Says what came of a study, and where it is; writes the effects of an ablation.

    Args:
        all_ended: True where no study trial is left to be done.
    """
    attempts = study.attempts
    counts = Counter(attempt.status for attempt in attempts)
    ended = [f"{counts[status]} {status}" for status in (COMPLETE, PRUNED, FAILED) if counts[status]]
    lines = [f"{study.folder}: {', '.join(ended) or 'no trial ended'}"]
    if len(study.attempts) == study.n_before:
        lines[0] += "; it was finished before, so nothing was run"
    if study.base.context == "ablation" and (rows := effects(study.folder, attempts)):
        write_csv(study.folder / "effects.csv", Effect._fields, rows)
        cells = [
            (row[0], f"{row.ratio:.3f}", f"{row.low:.3f} to {row.high:.3f}", row.verdict) for row in rows
        ]
        lines += text_table(("without", "/base", "95 % interval", ""), cells, width=80).lines
        lines.append(f"effects: {study.folder / 'effects.csv'}")
    else:
        lines += compared(attempts)
    lines.append(f"trials: {study.folder / 'trials.csv'}")
    lines.append(CURVES.format(study.folder))
    if not all_ended:
        lines.append("stopped; run the same command again to resume")
    return lines


def compared(attempts: Iterable[Attempt]) -> list[str]:
    """A row for each combination of settings, the best first: means over its seeds, and their spread."""
    by_settings: dict[tuple[str, str], list[Attempt]] = defaultdict(list)
    for attempt in attempts:
        if attempt.status == COMPLETE and attempt.best_score is not None:
            by_settings[attempt.mode, attempt.component].append(attempt)
    scores = {key: [attempt.best_score or 0.0 for attempt in some] for key, some in by_settings.items()}
    rows = []
    for key in sorted(scores, key=lambda key: fmean(scores[key])):
        held_out = [attempt.held_out for attempt in by_settings[key] if attempt.held_out is not None]
        spread = f"{stdev(scores[key]):.3f}" if len(scores[key]) > 1 else "-"
        shown = f"{fmean(held_out):.3f}" if held_out else "-"
        settings = " ".join(filter(None, key)).removeprefix("grid ").removeprefix("sampled ")
        rows.append((settings, f"{fmean(scores[key]):.3f}", spread, shown, str(len(scores[key]))))
    headings = "settings", "score", "±", "held out", "seeds"
    legend = "score, held out: step times over the fastest single device's, means over seeds"
    return [*text_table(headings, rows, expendable=("±", "held out")).lines, legend] if rows else []


class Effect(NamedTuple):
    """The effect of leaving a component out: a row of `effects.csv`.

    Attributes:
        ratio: step time over that of the base, geometric mean over graphs and over seeds of the trainings.
        low, high: its 95 % interval; graphs and seeds are resampled.
        n_seeds, n_graphs: numbers that both trainings have.
        verdict: reading of the interval; one seed says nothing of another training.
    """

    component: str
    ratio: float
    low: float
    high: float
    n_seeds: int
    n_graphs: int
    verdict: str


def effects(folder: Path, attempts: Iterable[Attempt]) -> list[Effect]:
    """Compares a component's trainings with the base's of the same seed, graph by graph; the largest first.

    Graphs are those that chose nothing; the step is simulated, whatever a policy was trained with.

    Raises:
        FileFormatError: the step times of a study trial are damaged.
    """
    judged: dict[str, dict[int, dict[str, float]]] = defaultdict(dict)
    for attempt in attempts:
        if attempt.status == COMPLETE and attempt.held_out is not None:
            path = folder / "trials" / attempt.trial / JUDGEMENT
            ratios = read_json(path)
            if not isinstance(ratios, dict) or not all(
                type(ratio) is float and ratio > 0 for ratio in ratios.values()
            ):
                raise FileFormatError(f"{path}: holds no step times; choose another --name")
            judged[attempt.component][attempt.seed] = ratios
    base = judged.pop("", {})
    sizes = [_effect(name, by_seed, base) for name, by_seed in judged.items() if by_seed.keys() & base.keys()]
    return sorted(sizes, key=lambda effect: -effect.ratio)


def _effect(name: str, without: dict[int, dict[str, float]], base: dict[int, dict[str, float]]) -> Effect:
    seeds = sorted(without.keys() & base.keys())
    graphs = sorted(set.intersection(*({*without[seed]} & {*base[seed]} for seed in seeds)))
    logs = np.log([[without[seed][graph] / base[seed][graph] for graph in graphs] for seed in seeds])
    ratio, low, high = crossed_interval(logs)
    is_clear = len(seeds) > 1 and not (low <= 1 + ROUNDING and high >= 1 - ROUNDING)
    verdict = INCONCLUSIVE if not is_clear else "slower without" if ratio > 1 else "faster without"
    return Effect(name, ratio, low, high, len(seeds), len(graphs), verdict)
