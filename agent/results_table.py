"""One table from several evaluations: `python -m agent.results_table FOLDER ...`, as `evaluate.py` wrote.

Evaluations of policies from several training seeds, or with several budgets, become one table in Markdown: a
row per placer, a column per family. A cell is the geometric mean of the step time over that of the fastest
single device, and its sample standard deviation over seeds: training seeds for a policy, search seeds for the
others.
"""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev

from agent.placers.learned import LEARNED
from agent.results import Journal, Trial
from agent.summary import geometric_mean
from graphs.json_files import read_json


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


def to_markdown(evaluations: Sequence[Evaluation]) -> str:
    """The table; placers that use their whole budget have a row per budget.

    A family's column holds graphs that no policy of these evaluations was trained on.
    """
    samples: dict[str, dict[str, dict[object, list[Trial]]]] = defaultdict(
        lambda: defaultdict(lambda: defaultdict(list))
    )
    families: dict[str, set[str]] = defaultdict(set)
    for evaluation in evaluations:
        for trial in evaluation.trials:
            seed = (evaluation.policy if trial.placer in LEARNED else "", trial.seed)
            samples[_row_name(trial, evaluation)][trial.family][seed].append(trial)
            families[trial.family].add(trial.graph)
    header = [
        "placer",
        *(f"{family} ({len(graphs)})" for family, graphs in families.items()),
        "all",
        "s/graph",
    ]
    lines = [header, ["---"] * len(header)]
    for name, by_family in samples.items():
        cells = [_cell(by_family[family]) for family in families]
        everything: dict[object, list[Trial]] = defaultdict(list)
        for by_seed in by_family.values():
            for key, trials in by_seed.items():
                everything[key] += trials
        wall_s = fmean(trial.wall_s for trials in everything.values() for trial in trials)
        lines.append([name, *cells, _cell(everything), f"{wall_s:.2g}"])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _row_name(trial: Trial, evaluation: Evaluation) -> str:
    name = f"{trial.placer} ({trial.order})" if trial.order not in ("", "topo") else trial.placer
    spends = trial.placer in ("random", "annealing", "local-search")
    return f"{name}, {evaluation.budget:,} evaluations" if spends and evaluation.budget else name


def _cell(by_seed: dict[object, list[Trial]]) -> str:
    """Mean and spread over seeds of the geometric mean; a share that fits where not all do."""
    means = [mean for trials in by_seed.values() if (mean := _mean(trials)) is not None]
    if not means:
        return "fits none"
    text = f"{fmean(means):.3f}" + (f" ± {stdev(means):.3f}" if len(means) > 1 else "")
    share = fmean(trial.feasible for trials in by_seed.values() for trial in trials)
    return text if share == 1 else f"{text} (fits {share:.0%})"


def _mean(trials: Iterable[Trial]) -> float | None:
    return geometric_mean(trial.ratio_to_single for trial in trials)


def main(arguments: Sequence[str]) -> int:
    """Print the table; returns the exit code: 0 done, 2 wrong input."""
    try:
        if not arguments:
            raise ValueError("no folders; give those that evaluate.py --out wrote")
        print(to_markdown([read_evaluation(Path(folder)) for folder in arguments]))
    except (ValueError, OSError) as error:
        print(f"results_table: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
