"""Leave one group of families out: train without each group, then evaluate on it.

`python -m agent.experiments.leave_one_out` trains, evaluates and prints the tables.

Trainings and evaluations that are done are not repeated: an experiment that was interrupted, or is asked for
more seeds, goes on. The trainings are the trials of a study, `runs/leave-one-out`; their evaluations are
folders in them, named by the benchmark setting.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from agent.evaluation.report.dots import draw_dots
from agent.experiments.launcher import evaluate_run, exit_code, markdown_table, train_all, trained, trials_of
from agent.experiments.statistics import (
    LOWER_BOUND,
    ROW_COLUMNS,
    Comparison,
    against_baseline,
    describe,
    interval,
    row_cells,
)
from agent.training.run_folder import RUNS
from graphs.dataset import load_family
from graphs.io.graph_files import write_graphs
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError
from graphs.system.json_files import write_bytes_atomic

CONFIG = Path(__file__).parent / "leave_one_out.json"
GROUPS = {
    "cifar10": ("cifar10",),
    "ptb": ("ptb",),
    "nmt": ("nmt",),
    "cnn": ("resnet", "inception"),
    "attention": ("gpt", "bert", "vit", "moe"),
}
"""Families that are left out together, as they resemble each other."""
STUDY = "leave-one-out"
SEARCHES = ("annealing", "local-search", "policy-refine")
ALL_PLACERS = (
    "single",
    "contiguous",
    "memory-fill",
    "m-topo",
    "heft",
    "m-etf",
    "rollout",
    "policy",
    "policy-sample",
    "policy-beam",
    *SEARCHES,
)
FEW_PLACERS = ("heft", "rollout", "policy", "policy-sample", "policy-beam", *SEARCHES)
BASELINE = "annealing"
COLUMNS = ("setting", "cluster", "placer", "group", *ROW_COLUMNS)
"""Columns of the rows as CSV."""
SLOWER, N_NAMED = 1.005, 4
"""Step time over the baseline's from which a graph counts as slower; and how many such graphs are named."""


@dataclass(frozen=True)
class BenchmarkSetting:
    """The settings of an evaluation on the families left out.

    Attributes:
        name: of the folder of the evaluation.
        placers: names.
        budget: flags that limit each trial.
        cluster: preset to place on.
        every: 4 takes every fourth graph only.
    """

    name: str
    placers: tuple[str, ...]
    budget: tuple[str, ...]
    cluster: str = "4xv100"
    every: int = 1

    @property
    def title(self) -> str:
        """The name as the tables show it."""
        return self.name.replace("-", " ") + (f", every {self.every}th graph" if self.every > 1 else "")


SETTINGS = (
    BenchmarkSetting("10000-evaluations", ALL_PLACERS, ("--budget", "10000")),
    *(
        BenchmarkSetting(f"10000-evaluations-on-{cluster}", FEW_PLACERS, ("--budget", "10000"), cluster)
        for cluster in ("2xk80", "8xa100", "2x4xa100")
    ),
    BenchmarkSetting("100000-evaluations", SEARCHES, ("--budget", "100000")),
    BenchmarkSetting("1-second", SEARCHES, ("--seconds", "1")),
    BenchmarkSetting("10-seconds", SEARCHES, ("--seconds", "10"), every=4),
)


def changes_of(groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of the training that leaves each group out: all families of the configuration but its own."""
    families = json.loads(CONFIG.read_text(encoding="utf-8"))["families"]
    return {
        group: {"families": tuple(family for family in families if family not in GROUPS[group])}
        for group in groups
    }


def graphs_of(group: str, setting: BenchmarkSetting) -> list[str]:
    """Flags that name the graphs of a setting; a selection of graphs is written to a file."""
    if setting.every == 1:
        return ["--families", *GROUPS[group]]
    file = RUNS / f"leave-one-out-{group}-every-{setting.every}.jsonl"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = [graph for family in GROUPS[group] for graph in load_family(family)[:: setting.every]]
        write_graphs(file, chosen)
    return ["--graphs", str(file)]


def evaluate_one(group: str, seed: int, setting: BenchmarkSetting) -> None:
    """Evaluate a policy on the families that it was not trained on."""
    folder = trained(STUDY, group, seed)
    flags = ["--policy", str(folder), *graphs_of(group, setting), "--cluster", setting.cluster, "--jobs", "2"]
    flags += [
        "--placers",
        *setting.placers,
        *setting.budget,
        "--seeds",
        "1",
        "--out",
        str(folder / setting.name),
    ]
    evaluate_run(flags)


def compare(group: str, seeds: Sequence[int], setting: BenchmarkSetting) -> dict[str, Comparison]:
    """Compare each placer with the baseline on a group's graphs, over all trainings that were evaluated."""
    folders = [trained(STUDY, group, seed) / setting.name for seed in seeds]
    return against_baseline([folder for folder in folders if folder.is_dir()], BASELINE)


def to_markdown(
    groups: Sequence[str], seeds: Sequence[int], settings: Sequence[BenchmarkSetting] = SETTINGS
) -> str:
    """A table of step times over the baseline's: a row per setting and placer, a column per group."""
    lines = [["setting", "placer", *groups, "s/graph"]]
    for setting in settings:
        by_group = {group: compare(group, seeds, setting) for group in groups}
        for placer in (*setting.placers, LOWER_BOUND):
            compared = [by_group[group].get(placer) for group in groups]
            wall_s = [second for each in compared if each for second in each.wall_s]
            cells = [*map(describe, compared), f"{fmean(wall_s):.2g}" if wall_s else ""]
            lines.append([setting.title, placer, *cells])
    return markdown_table(lines)


def slower_to_markdown(groups: Sequence[str], seeds: Sequence[int], setting: BenchmarkSetting) -> str:
    """A table of graphs on which the policy is slower than the baseline: how many, and the worst by name."""
    lines = [[f"slower than {BASELINE}", *groups]]
    by_group = {group: compare(group, seeds, setting) for group in groups}
    for placer in setting.placers:
        if placer.startswith("policy"):
            lines.append([placer, *(_slower(by_group[group].get(placer)) for group in groups)])
    return markdown_table(lines)


def _slower(compared: Comparison | None) -> str:
    if compared is None:
        return ""
    slower = compared.above(SLOWER)
    worst = ", ".join(f"{graph} {ratio:.2f}" for (graph, _), ratio in list(slower.items())[:N_NAMED])
    return f"{len(slower)} of {len(compared.ratios)}" + (f": {worst}" if worst else "")


def to_rows(
    groups: Sequence[str], seeds: Sequence[int], settings: Sequence[BenchmarkSetting]
) -> Iterator[tuple[object, ...]]:
    """The cells of `to_markdown` as rows of numbers, in the order of `COLUMNS`."""
    for setting in settings:
        for group in groups:
            compared = compare(group, seeds, setting)
            for placer in (*setting.placers, LOWER_BOUND):
                if placer in compared:
                    yield setting.name, setting.cluster, placer, group, *row_cells(compared[placer])


def to_svg(groups: Sequence[str], seeds: Sequence[int], setting: BenchmarkSetting) -> bytes:
    """Draws a dot per placer and group left out, with its interval over graphs.

    Raises:
        InputError: no placer was evaluated in this setting in every group.
    """
    by_group = {group: compare(group, seeds, setting) for group in groups}
    placers = [
        placer
        for placer in (LOWER_BOUND, *setting.placers)
        if all(placer in compared and compared[placer].ratios for compared in by_group.values())
    ]
    if not placers:
        raise InputError(f"nothing to draw: no evaluation '{setting.name}' for all of {', '.join(groups)}")
    placers.sort(key=lambda placer: math.prod(by_group[group][placer].centre for group in groups))
    dots = {group: [interval(by_group[group][placer].ratios) for placer in placers] for group in groups}
    return draw_dots(placers, dots, f"{setting.title}: step time over that of {BASELINE} (less is better)")


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the tables; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    options = _parser().parse_args(arguments)
    return exit_code("agent.experiments.leave_one_out", lambda: _work(options))


def _parser() -> argparse.ArgumentParser:
    names = [setting.name for setting in SETTINGS]
    parser = OneLineParser(prog="agent.experiments.leave_one_out", description=__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of the trainings")
    parser.add_argument("--minutes", type=float, default=20, help="of each training, on one core")
    parser.add_argument(
        "--settings", nargs="+", choices=names, default=names, metavar="SETTING", help=", ".join(names)
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", choices=("train", "table"), help="do only this part")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the first setting (.svg)")
    parser.add_argument("--rows", type=Path, metavar="FILE", help="write the rows of the first table (.csv)")
    return parser


def _work(options: argparse.Namespace) -> None:
    groups, seeds = options.groups, options.seeds
    runs = [(group, seed) for seed in seeds for group in groups]
    settings = [setting for setting in SETTINGS if setting.name in options.settings]
    if options.only != "table":
        trials = trials_of(CONFIG, options.minutes, changes_of(groups), seeds)
        train_all(STUDY, "grid", trials, options.jobs)
    if options.only is None:
        for setting in settings:
            for group, seed in runs:
                evaluate_one(group, seed, setting)
    print(to_markdown(groups, seeds, settings))
    print(slower_to_markdown(groups, seeds, settings[0]))
    if options.rows:
        write_csv(options.rows, COLUMNS, to_rows(groups, seeds, settings))
    if options.figure:
        write_bytes_atomic(options.figure, to_svg(groups, seeds, settings[0]))


if __name__ == "__main__":
    sys.exit(main())
