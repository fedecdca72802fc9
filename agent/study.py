"""Leave one group of families out: `python -m agent.study` trains without each group, then tests on it.

Trainings and evaluations that are done are not repeated: a study that was interrupted, or is asked for more
seeds, goes on. Runs are `runs/study-GROUP-SEED`, their evaluations `RACE` folders in them.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from statistics import stdev

import numpy as np

from agent.experiments import evaluate_run, exit_code, train_run
from agent.results_table import read_evaluation
from agent.runs import run_folder

CONFIG = Path(__file__).parent / "study.json"
GROUPS = {
    "cifar10": ("cifar10",),
    "ptb": ("ptb",),
    "nmt": ("nmt",),
    "cnn": ("resnet", "inception"),
    "attention": ("gpt", "bert", "vit", "moe"),
}
"""Families that are left out together, as they resemble each other."""
SEARCHES = ("annealing", "local-search", "policy-refine")
EVERYTHING = (
    "single",
    "contiguous",
    "memory-fill",
    "m-topo",
    "heft",
    "m-etf",
    "policy",
    "policy-sample",
    "policy-beam",
    *SEARCHES,
)
BRIEFLY = ("heft", "policy", "policy-sample", "policy-beam", *SEARCHES)
RIVAL = "annealing"
RESAMPLES = 2_000


@dataclass(frozen=True)
class Race:
    """An evaluation: who runs, with what budget, and where."""

    name: str
    placers: tuple[str, ...]
    budget: tuple[str, ...]
    cluster: str = "4xv100"


RACES = (
    Race("10000-evaluations", EVERYTHING, ("--budget", "10000")),
    *(
        Race(f"10000-evaluations-on-{cluster}", BRIEFLY, ("--budget", "10000"), cluster)
        for cluster in ("2xk80", "8xa100", "2x4xa100")
    ),
    Race("100000-evaluations", SEARCHES, ("--budget", "100000")),
    Race("1-second", SEARCHES, ("--seconds", "1")),
    Race("10-seconds", SEARCHES, ("--seconds", "10")),
)


def name_of(group: str, seed: int) -> str:
    """Name of a run."""
    return f"study-{group}-{seed}"


def train_one(group: str, seed: int, minutes: float) -> None:
    """Train a policy on all families of the configuration but a group's."""
    families = json.loads(CONFIG.read_text(encoding="utf-8"))["families"]
    others = [family for family in families if family not in GROUPS[group]]
    words = ["--families", *others, "--seed", str(seed), "--minutes", str(minutes)]
    train_run(name_of(group, seed), CONFIG, words)


def evaluate_one(group: str, seed: int, race: Race) -> None:
    """Let a race be run on the families that a policy was not trained on."""
    folder = run_folder(name_of(group, seed))
    words = ["--policy", str(folder), "--families", *GROUPS[group], "--cluster", race.cluster, "--jobs", "2"]
    words += ["--placers", *race.placers, *race.budget, "--seeds", "1", "--out", str(folder / race.name)]
    evaluate_run(words)


Ratios = dict[tuple[str, str], list[float]]
"""Logarithms of step times over the rival's, one per training, by graph and cluster."""


def against_rival(folders: Iterable[Path]) -> dict[str, Ratios]:
    """Compare, graph by graph, each placer with the rival of the same race; what fits nowhere is left out.

    Returns:
        By placer.
    """
    compared: dict[str, Ratios] = defaultdict(lambda: defaultdict(list))
    for folder in folders:
        times: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
        for trial in read_evaluation(folder).trials:
            if trial.feasible:
                times[trial.graph, trial.cluster][trial.placer].append(np.log(trial.step_time_s))
        for where, by_placer in times.items():
            if RIVAL in by_placer:
                for placer, logs in by_placer.items():
                    compared[placer][where].append(float(np.mean(logs) - np.mean(by_placer[RIVAL])))
    return compared


def interval(ratios: Ratios) -> tuple[float, float, float]:
    """Geometric mean, and the 95 % interval that resampling the graphs gives."""
    means = np.array([np.mean(logs) for logs in ratios.values()])
    drawn = np.random.default_rng(0).choice(means, (RESAMPLES, len(means))).mean(axis=1)
    centre, low, high = np.exp([means.mean(), *np.quantile(drawn, [0.025, 0.975])])
    return float(centre), float(low), float(high)


def spread(ratios: Ratios) -> float | None:
    """Standard deviation over trainings of the geometric mean; None for fewer than two."""
    by_training = [np.exp(np.mean(column)) for column in zip(*ratios.values(), strict=False)]
    return stdev(by_training) if len(by_training) > 1 else None


def to_markdown(groups: Sequence[str], seeds: Sequence[int], races: Sequence[Race] = RACES) -> str:
    """A table of step times over the rival's, a row per race and placer, a column per group left out."""
    lines = [["race", "placer", *groups], ["---"] * (2 + len(groups))]
    for race in races:
        by_group = {}
        for group in groups:
            folders = [run_folder(name_of(group, seed)) / race.name for seed in seeds]
            by_group[group] = against_rival(folder for folder in folders if folder.is_dir())
        for placer in race.placers:
            cells = [describe(by_group[group].get(placer)) for group in groups]
            lines.append([race.name.replace("-", " "), placer, *cells])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def describe(ratios: Ratios | None) -> str:
    """Geometric mean, 95 % interval over graphs, and spread over trainings if there are several."""
    if not ratios:
        return ""
    centre, low, high = interval(ratios)
    over_trainings = spread(ratios)
    return f"{centre:.3f} ({low:.3f} to {high:.3f}" + (
        f"; ± {over_trainings:.3f})" if over_trainings else ")"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the table; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    names = [race.name for race in RACES]
    parser = argparse.ArgumentParser(prog="agent.study", description=__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of the trainings")
    parser.add_argument("--minutes", type=float, default=20, help="of each training, on one core")
    parser.add_argument(
        "--races", nargs="+", choices=names, default=names, metavar="RACE", help=", ".join(names)
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", choices=("train", "table"), help="do only this part")
    options = parser.parse_args(arguments)
    runs = [(group, seed) for seed in options.seeds for group in options.groups]
    races = [race for race in RACES if race.name in options.races]

    def work() -> None:
        if options.only != "table":
            with ThreadPoolExecutor(options.jobs) as pool:
                list(pool.map(lambda run: train_one(run[0], run[1], options.minutes), runs))
        if options.only is None:
            for race in races:
                for group, seed in runs:
                    evaluate_one(group, seed, race)
        print(to_markdown(options.groups, options.seeds, races))

    return exit_code("agent.study", work)


if __name__ == "__main__":
    sys.exit(main())
