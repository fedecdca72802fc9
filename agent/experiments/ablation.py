"""An ablation of the policy: the full model, and variants with one thing changed at a time.

`python -m agent.experiments.ablation` trains, evaluates and prints the table.

Every variant is trained for the same time on the same graphs. It is evaluated by one greedy episode and by
the best of 17 episodes on each graph it was not trained on, of families it was trained on and of others. What
is done is not repeated: an ablation that was interrupted, or is asked for more seeds, goes on. The trainings
are the trials of a study, `runs/ablation`.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agent.experiments.launcher import evaluate_run, exit_code, markdown_table, train_all, trained, trials_of
from agent.experiments.statistics import ROW_COLUMNS, Comparison, Where, describe, read_trials, row_cells
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv

CONFIG = Path(__file__).parent / "ablation.json"
FAMILIES = ("cifar10", "ptb", "resnet", "gpt", "vit", "moe")
OTHERS = ("nmt", "inception", "bert")
TRAINED, NEVER_SEEN = "trained families", "families never seen"
FULL_MODEL = "full-model"
VARIANTS: dict[str, dict[str, Any]] = {
    FULL_MODEL: {},
    "encoder-none": {"encoder": "none"},
    "encoder-gat": {"encoder": "gat"},
    "encoder-transformer": {"encoder": "transformer"},
    "encoder-placeto": {"encoder": "placeto"},
    "rounds-1": {"rounds": 1},
    "rounds-8": {"rounds": 8},
    "width-128": {"hidden": 128},
    "no-rollout-features": {"feature_set": "consumers"},
    "no-consumer-features": {"feature_set": "lookahead"},
    "no-lookahead": {"feature_set": "state"},
    "advantage-graph": {"advantage": "graph"},
    "advantage-batch": {"advantage": "batch"},
    "no-randomization": {"randomizations": 0},
    "no-dagger": {"dagger_rounds": 0},
    "no-demonstrations": {"demonstrations": 0, "dagger_rounds": 0},
    "no-reinforcement": {"timesteps": 0},
    "order-b-level": {"order": ("b-level",)},
    "order-bfs": {"order": ("bfs",)},
    "order-random": {"order": ("random",)},
}
"""Settings of the training by variant."""
STUDY = "ablation"
EVALUATION = "episodes"
PLACERS = {"policy": "one episode", "policy-sample": "17 episodes"}
COLUMNS = tuple((placer, known) for placer in PLACERS for known in (TRAINED, NEVER_SEEN))
"""Columns of the table: a placer, and whether the families were trained on."""
ROWS = ("variant", "flags", "families", "placer", *ROW_COLUMNS[:-2])
"""Columns of the rows as CSV."""

Column = tuple[str, str]


def flags_of(variant: str) -> str:
    """The settings of a variant as flags."""
    words = []
    for field, value in VARIANTS[variant].items():
        words += [f"--{field.replace('_', '-')}", *(value if isinstance(value, tuple) else [str(value)])]
    return " ".join(words)


def evaluate_one(variant: str, seed: int, clusters: Sequence[str]) -> None:
    """Evaluate a policy, in the order it was trained in, on every graph that it was not trained on."""
    folder = trained(STUDY, variant, seed)
    flags = ["--policy", str(folder), "--families", *FAMILIES, *OTHERS, "--cluster", *clusters]
    flags += ["--placers", *PLACERS, "--seeds", "1", "--out", str(folder / EVALUATION), "--jobs", "2"]
    if "order" in VARIANTS[variant]:
        flags += ["--orders", *VARIANTS[variant]["order"]]
    evaluate_run(flags)


def log_times(folder: Path) -> dict[Column, dict[Where, float]]:
    """Logarithm of the step time by graph and cluster, in each column."""
    times: dict[Column, dict[Where, float]] = {column: {} for column in COLUMNS}
    for trial in read_trials(folder):
        if trial.feasible:
            known = TRAINED if trial.family in FAMILIES else NEVER_SEEN
            times[trial.placer, known][trial.graph, trial.cluster] = float(np.log(trial.step_time_s))
    return times


def against_full_model(variant: str, seeds: Sequence[int]) -> dict[Column, Comparison]:
    """Compare a variant with the full model of the same seed, on the graphs where both are feasible."""
    compared = {column: Comparison() for column in COLUMNS}
    for seed in seeds:
        folders = [trained(STUDY, name, seed) / EVALUATION for name in (variant, FULL_MODEL)]
        if all(folder.is_dir() for folder in folders):
            own, full = map(log_times, folders)
            for column, comparison in compared.items():
                for where in sorted(own[column].keys() & full[column].keys()):
                    comparison.ratios[where].append(own[column][where] - full[column][where])
    return compared


def to_markdown(variants: Sequence[str], seeds: Sequence[int]) -> str:
    """A row per variant: its step time over that of the full model."""
    names = [f"{known}, {PLACERS[placer]}" for placer, known in COLUMNS]
    lines = [["variant", "flags", *names]]
    for variant in variants:
        compared = against_full_model(variant, seeds).values()
        cells = [describe(each if each.ratios else None) for each in compared]
        lines.append([variant, f"`{flags_of(variant)}`" if VARIANTS[variant] else "", *cells])
    return markdown_table(lines)


def to_rows(variants: Sequence[str], seeds: Sequence[int]) -> Iterator[tuple[object, ...]]:
    """The cells of `to_markdown` as rows of numbers, in the order of `ROWS`."""
    for variant in variants:
        for (placer, known), compared in against_full_model(variant, seeds).items():
            if compared.ratios:
                yield variant, flags_of(variant), known, placer, *row_cells(compared)[:-2]


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the table; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.ablation", description=__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), metavar="VARIANT")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of the trainings")
    parser.add_argument("--minutes", type=float, default=10, help="of each training, on one core")
    parser.add_argument("--cluster", nargs="+", default=["4xv100"], help="to evaluate on")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", choices=("table",), help="do only this part")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of the table (.csv)")
    options = parser.parse_args(arguments)
    runs = [(variant, seed) for seed in options.seeds for variant in options.variants]

    def work() -> None:
        if options.only is None:
            changes = {name: {"families": FAMILIES, **VARIANTS[name]} for name in options.variants}
            trials = trials_of(CONFIG, options.minutes, changes, options.seeds)
            train_all(STUDY, "ablation", trials, options.jobs)
            for variant, seed in runs:
                evaluate_one(variant, seed, options.cluster)
        print(to_markdown(options.variants, options.seeds))
        if options.rows:
            write_csv(options.rows, ROWS, to_rows(options.variants, options.seeds))

    return exit_code("agent.experiments.ablation", work)


if __name__ == "__main__":
    sys.exit(main())
