"""One table from several evaluations: `python -m agent.results_table FOLDER ...`, as `evaluate.py` wrote.

Evaluations of policies from several training seeds, or with several budgets, become one table in Markdown: a
row per placer, a column per family. A cell is the geometric mean of the step time over that of the fastest
single device, and its sample standard deviation over seeds: training seeds for a policy, search seeds for the
others.
"""

from __future__ import annotations

import argparse
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

import numpy as np

from agent.placers.learned import LEARNED
from agent.results import Journal, Trial
from agent.summary import geometric_mean
from graphs.json_files import read_json, write_bytes_atomic

TRAINED, NEVER_SEEN = "trained families", "families never seen"
LABELS_WIDTH, UNIT_WIDTH, BAR_HEIGHT = 220, 400, 12
COLOURS = ("#4477aa", "#ee6677")


@dataclass(frozen=True)
class Evaluation:
    """The trials of one evaluation.

    Attributes:
        policy: hash of the policy, empty where none was used.
        budget: evaluations per trial, None without that limit.
    """

    policy: str
    budget: int | None
    trials: tuple[Trial, ...]


def read_evaluation(folder: Path) -> Evaluation:
    """Read a folder that `evaluate.py` has written.

    Raises:
        ValueError: it holds no evaluation.
    """
    settings = read_json(folder / "settings.json")
    if not isinstance(settings, dict) or "budget" not in settings:
        raise ValueError(f"{folder}: holds no evaluation; give a folder that evaluate.py --out wrote")
    journal = Journal(folder / "journal.jsonl")
    journal.close()
    return Evaluation(settings["policy"], settings["budget"]["evaluations"], tuple(journal.trials.values()))


Samples = dict[object, list[Trial]]
"""Trials by what they are a repetition under: policy and seed."""


@dataclass(frozen=True)
class Table:
    """Trials by placer and column.

    Attributes:
        columns: a name for each column, and the number of its graphs.
        rows: for each placer, its trials in each column.
    """

    columns: dict[str, int]
    rows: dict[str, dict[str, Samples]]


def make_table(evaluations: Sequence[Evaluation], trained: Sequence[str]) -> Table:
    """Gather trials; placers that use their whole budget have a row per budget.

    The best placer comes first. There is a column per family, of graphs that no policy of these evaluations
    was trained on, then one for all families in `trained` together and one for all others.
    """
    rows: dict[str, dict[str, Samples]] = defaultdict(lambda: defaultdict(lambda: defaultdict(list)))
    graphs: dict[str, set[str]] = defaultdict(set)
    for evaluation in evaluations:
        for trial in evaluation.trials:
            seed = (evaluation.policy if trial.placer in LEARNED else "", trial.seed)
            for column in (trial.family, TRAINED if trial.family in trained else NEVER_SEEN):
                rows[_row_name(trial, evaluation)][column][seed].append(trial)
                graphs[column].add(trial.graph)
    ends = [name for name in (TRAINED, NEVER_SEEN) if name in graphs]
    columns = [name for name in graphs if name not in ends] + ends
    best_first = sorted(rows, key=lambda name: [_centre(rows[name][column]) or np.inf for column in ends])
    return Table({name: len(graphs[name]) for name in columns}, {name: rows[name] for name in best_first})


def to_markdown(table: Table) -> str:
    """The table in Markdown, with the mean wall time per trial."""
    header = ["placer", *(f"{name} ({count})" for name, count in table.columns.items()), "s/graph"]
    lines = [header, ["---"] * len(header)]
    for name, by_column in table.rows.items():
        every = (trial for by_seed in by_column.values() for trials in by_seed.values() for trial in trials)
        wall_s = fmean(trial.wall_s for trial in every)
        lines.append([name, *(_cell(by_column[column]) for column in table.columns), f"{wall_s:.2g}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def to_svg(table: Table) -> str:
    """Bars of the two summary columns, a pair per placer, the shortest step at the top."""
    columns = [name for name in (TRAINED, NEVER_SEEN) if name in table.columns]
    means = {
        name: [_centre(by_column[column]) for column in columns] for name, by_column in table.rows.items()
    }
    shown = {name: values for name, values in means.items() if None not in values}
    order = sorted(shown, key=lambda name: fmean(value or 0.0 for value in shown[name]))
    bars, top = [], 46
    for name in order:
        middle = top + len(columns) * BAR_HEIGHT / 2 + 4
        bars.append(f'<text x="{LABELS_WIDTH - 8}" y="{middle}" text-anchor="end">{name}</text>')
        for column, value in enumerate(shown[name]):
            y, length = top + column * BAR_HEIGHT, (value or 0.0) * UNIT_WIDTH
            bars.append(
                f'<rect x="{LABELS_WIDTH}" y="{y}" width="{length:.1f}" height="{BAR_HEIGHT - 1}" '
                f'fill="{COLOURS[column]}"/>'
                f'<text x="{LABELS_WIDTH + length + 4:.1f}" y="{y + BAR_HEIGHT - 3}" '
                f'font-size="9">{value:.3f}</text>'
            )
        top += len(columns) * BAR_HEIGHT + 7
    legend = "".join(
        f'<rect x="{LABELS_WIDTH + 230 * at}" y="26" width="10" height="10" fill="{COLOURS[at]}"/>'
        f'<text x="{LABELS_WIDTH + 230 * at + 15}" y="35">{name}</text>'
        for at, name in enumerate(columns)
    )
    one = LABELS_WIDTH + UNIT_WIDTH
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="760" height="{top + 8}" '
        f'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>'
        f'<text x="{LABELS_WIDTH}" y="16">step time over that of the fastest single device (lower is better)'
        f"</text>{legend}{''.join(bars)}"
        f'<line x1="{one}" x2="{one}" y1="42" y2="{top}" stroke="#222" stroke-dasharray="3 3"/></svg>\n'
    )


def _row_name(trial: Trial, evaluation: Evaluation) -> str:
    name = f"{trial.placer} ({trial.order})" if trial.order not in ("", "topo") else trial.placer
    spends = trial.placer in ("random", "annealing", "local-search", "policy-refine")
    return f"{name}, {evaluation.budget:,} evaluations" if spends and evaluation.budget else name


def _cell(by_seed: Samples) -> str:
    """Mean and spread over seeds of the geometric mean; a share that fits where not all do."""
    centre = _centre(by_seed)
    if centre is None:
        return "fits none"
    means = _means(by_seed)
    text = f"{centre:.3f}" + (f" ± {stdev(means):.3f}" if len(means) > 1 else "")
    share = fmean(trial.feasible for trials in by_seed.values() for trial in trials)
    return text if share == 1 else f"{text} (fits {share:.0%})"


def _centre(by_seed: Samples) -> float | None:
    means = _means(by_seed)
    return fmean(means) if means else None


def _means(by_seed: Samples) -> list[float]:
    means = (geometric_mean(trial.ratio_to_single for trial in trials) for trials in by_seed.values())
    return [mean for mean in means if mean is not None]


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code: 0 done, 2 wrong input."""
    parser = argparse.ArgumentParser(prog="results_table", description=__doc__)
    parser.add_argument(
        "folders", nargs="+", type=Path, metavar="FOLDER", help="what evaluate.py --out wrote"
    )
    parser.add_argument("--trained", nargs="+", default=[], metavar="FAMILY", help="families of the training")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="where to draw the summary (.svg)")
    options = parser.parse_args(arguments)
    try:
        table = make_table([read_evaluation(folder) for folder in options.folders], options.trained)
        print(to_markdown(table))
        if options.figure:
            write_bytes_atomic(options.figure, to_svg(table).encode())
    except (ValueError, OSError) as error:
        print(f"results_table: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
