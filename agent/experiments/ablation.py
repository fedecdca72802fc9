"""What matters in a policy: it is trained whole, and with one thing changed at a time.

`python -m agent.experiments.ablation` trains, evaluates and prints the table.

Every arm is trained for the same time on the same graphs, and judged by one greedy walk and by the best of 17
walks of each graph it has not seen, of families it knows and of families it does not. What is done is not
repeated: an ablation that was interrupted, or is asked for more seeds, goes on. Runs are
`runs/ablation-ARM-SEED`.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from agent.command_line import OneLineParser
from agent.experiments.launcher import evaluate_run, exit_code, markdown_table, side_by_side, train_run
from agent.experiments.statistics import Comparison, Where, describe, read_trials
from agent.training.run_folder import run_folder

CONFIG = Path(__file__).parent / "ablation.json"
FAMILIES = ("cifar10", "ptb", "resnet", "gpt", "vit", "moe")
OTHERS = ("nmt", "inception", "bert")
TRAINED, NEVER_SEEN = "trained families", "families never seen"
WHOLE = "whole"
ARMS: dict[str, tuple[str, ...]] = {
    WHOLE: (),
    "encoder-none": ("--encoder", "none"),
    "encoder-gat": ("--encoder", "gat"),
    "encoder-transformer": ("--encoder", "transformer"),
    "encoder-placeto": ("--encoder", "placeto"),
    "rounds-1": ("--rounds", "1"),
    "rounds-8": ("--rounds", "8"),
    "width-128": ("--hidden", "128"),
    "no-rollout-features": ("--feature-set", "consumers"),
    "no-consumer-features": ("--feature-set", "lookahead"),
    "no-lookahead": ("--feature-set", "state"),
    "advantage-graph": ("--advantage", "graph"),
    "advantage-batch": ("--advantage", "batch"),
    "no-randomization": ("--randomizations", "0"),
    "no-dagger": ("--dagger-rounds", "0"),
    "no-demonstrations": ("--demonstrations", "0", "--dagger-rounds", "0"),
    "no-reinforcement": ("--timesteps", "0"),
    "order-b-level": ("--order", "b-level"),
    "order-bfs": ("--order", "bfs"),
    "order-random": ("--order", "random"),
}
"""What each arm changes."""
EVALUATION = "walks"
PLACERS = {"policy": "one walk", "policy-sample": "17 walks"}
COLUMNS = tuple((placer, known) for placer in PLACERS for known in (TRAINED, NEVER_SEEN))
"""What an arm is judged by."""

Column = tuple[str, str]


def name_of(arm: str, seed: int) -> str:
    """Name of a run."""
    return f"ablation-{arm}-{seed}"


def evaluate_one(arm: str, seed: int, clusters: Sequence[str]) -> None:
    """Let a policy place, in the order it was trained in, every graph that it has not seen."""
    folder = run_folder(name_of(arm, seed))
    words = ["--policy", str(folder), "--families", *FAMILIES, *OTHERS, "--cluster", *clusters]
    words += ["--placers", *PLACERS, "--seeds", "1", "--out", str(folder / EVALUATION), "--jobs", "2"]
    changed = ARMS[arm]
    if "--order" in changed:
        words += ["--orders", changed[changed.index("--order") + 1]]
    evaluate_run(words)


def log_times(folder: Path) -> dict[Column, dict[Where, float]]:
    """Logarithm of the step time by graph and cluster, in each column."""
    times: dict[Column, dict[Where, float]] = {column: {} for column in COLUMNS}
    for trial in read_trials(folder):
        if trial.feasible:
            known = TRAINED if trial.family in FAMILIES else NEVER_SEEN
            times[trial.placer, known][trial.graph, trial.cluster] = float(np.log(trial.step_time_s))
    return times


def against_whole(arm: str, seeds: Sequence[int]) -> dict[Column, Comparison]:
    """Compare an arm with the whole policy of the same seed, graph by graph where both fit."""
    compared = {column: Comparison() for column in COLUMNS}
    for seed in seeds:
        folders = [run_folder(name_of(name, seed)) / EVALUATION for name in (arm, WHOLE)]
        if all(folder.is_dir() for folder in folders):
            own, whole = map(log_times, folders)
            for column, comparison in compared.items():
                for where in own[column].keys() & whole[column].keys():
                    comparison.ratios[where].append(own[column][where] - whole[column][where])
    return compared


def to_markdown(arms: Sequence[str], seeds: Sequence[int]) -> str:
    """A row per arm: its step time over that of the whole policy."""
    names = [f"{known}, {PLACERS[placer]}" for placer, known in COLUMNS]
    lines = [["arm", "flags", *names]]
    for arm in arms:
        compared = against_whole(arm, seeds).values()
        cells = [describe(each if each.ratios else None) for each in compared]
        lines.append([arm, f"`{' '.join(ARMS[arm])}`" if ARMS[arm] else "", *cells])
    return markdown_table(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the table; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.ablation", description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of the trainings")
    parser.add_argument("--minutes", type=float, default=10, help="of each training, on one core")
    parser.add_argument("--cluster", nargs="+", default=["4xv100"], help="to evaluate on")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", choices=("table",), help="do only this part")
    options = parser.parse_args(arguments)
    runs = [(arm, seed) for seed in options.seeds for arm in options.arms]

    def train_one(arm: str, seed: int) -> None:
        words = [*ARMS[arm], "--seed", str(seed), "--families", *FAMILIES]
        train_run(name_of(arm, seed), CONFIG, options.minutes, words)

    def work() -> None:
        if options.only is None:
            side_by_side(lambda run: train_one(*run), runs, options.jobs)
            for arm, seed in runs:
                evaluate_one(arm, seed, options.cluster)
        print(to_markdown(options.arms, options.seeds))

    return exit_code("agent.experiments.ablation", work)


if __name__ == "__main__":
    sys.exit(main())
