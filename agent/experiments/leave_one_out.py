"""Leave one group of families out: train without each group, then test on it.

`python -m agent.experiments.leave_one_out` trains, evaluates and prints the tables.

Trainings and evaluations that are done are not repeated: a study that was interrupted, or is asked for more
seeds, goes on. Runs are `runs/study-GROUP-SEED`, their evaluations `RACE` folders in them.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from agent.command_line import OneLineParser
from agent.experiments.dot_plot import dot_plot
from agent.experiments.launcher import evaluate_run, exit_code, markdown_table, side_by_side, train_run
from agent.experiments.statistics import LOWER_BOUND, Comparison, against_rival, describe
from agent.training.run_folder import RUNS, run_folder
from graphs.dataset import load_family
from graphs.io.graph_files import write_graphs
from graphs.io.json_files import write_bytes_atomic

CONFIG = Path(__file__).parent / "leave_one_out.json"
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
    "rollout",
    "policy",
    "policy-sample",
    "policy-beam",
    *SEARCHES,
)
BRIEFLY = ("heft", "rollout", "policy", "policy-sample", "policy-beam", *SEARCHES)
RIVAL = "annealing"
LOSS, N_WORST = 1.005, 4
"""A graph is lost where the step time is this many times the rival's; so many are named."""


@dataclass(frozen=True)
class Race:
    """An evaluation: who runs, with what budget, where; `every` 4 takes every fourth graph only."""

    name: str
    placers: tuple[str, ...]
    budget: tuple[str, ...]
    cluster: str = "4xv100"
    every: int = 1

    @property
    def title(self) -> str:
        """For a reader."""
        return self.name.replace("-", " ") + (f", every {self.every}th graph" if self.every > 1 else "")


RACES = (
    Race("10000-evaluations", EVERYTHING, ("--budget", "10000")),
    *(
        Race(f"10000-evaluations-on-{cluster}", BRIEFLY, ("--budget", "10000"), cluster)
        for cluster in ("2xk80", "8xa100", "2x4xa100")
    ),
    Race("100000-evaluations", SEARCHES, ("--budget", "100000")),
    Race("1-second", SEARCHES, ("--seconds", "1")),
    Race("10-seconds", SEARCHES, ("--seconds", "10"), every=4),
)


def name_of(group: str, seed: int) -> str:
    """Name of a run."""
    return f"study-{group}-{seed}"


def train_one(group: str, seed: int, minutes: float) -> None:
    """Train a policy on all families of the configuration but a group's."""
    families = json.loads(CONFIG.read_text(encoding="utf-8"))["families"]
    others = [family for family in families if family not in GROUPS[group]]
    train_run(name_of(group, seed), CONFIG, minutes, ["--families", *others, "--seed", str(seed)])


def graphs_of(group: str, race: Race) -> list[str]:
    """Flags that name the graphs of a race; where it leaves some out, the others are written to a file."""
    if race.every == 1:
        return ["--families", *GROUPS[group]]
    file = RUNS / f"study-{group}-every-{race.every}.jsonl"
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        chosen = [graph for family in GROUPS[group] for graph in load_family(family)[:: race.every]]
        write_graphs(file, chosen)
    return ["--graphs", str(file)]


def evaluate_one(group: str, seed: int, race: Race) -> None:
    """Let a race be run on the families that a policy was not trained on."""
    folder = run_folder(name_of(group, seed))
    words = ["--policy", str(folder), *graphs_of(group, race), "--cluster", race.cluster, "--jobs", "2"]
    words += ["--placers", *race.placers, *race.budget, "--seeds", "1", "--out", str(folder / race.name)]
    evaluate_run(words)


def compare(group: str, seeds: Sequence[int], race: Race) -> dict[str, Comparison]:
    """What each placer makes of a group's graphs, over all trainings that have run the race."""
    folders = [run_folder(name_of(group, seed)) / race.name for seed in seeds]
    return against_rival([folder for folder in folders if folder.is_dir()], RIVAL)


def to_markdown(groups: Sequence[str], seeds: Sequence[int], races: Sequence[Race] = RACES) -> str:
    """A table of step times over the rival's: a row per race and placer, a column per group left out."""
    lines = [["race", "placer", *groups, "s/graph"]]
    for race in races:
        by_group = {group: compare(group, seeds, race) for group in groups}
        for placer in (*race.placers, LOWER_BOUND):
            compared = [by_group[group].get(placer) for group in groups]
            wall_s = [second for each in compared if each for second in each.wall_s]
            cells = [*map(describe, compared), f"{fmean(wall_s):.2g}" if wall_s else ""]
            lines.append([race.title, placer, *cells])
    return markdown_table(lines)


def losses_to_markdown(groups: Sequence[str], seeds: Sequence[int], race: Race) -> str:
    """A table of the graphs on which the policy's placers lose: how many, and the worst by name."""
    lines = [[f"lost to {RIVAL}", *groups]]
    by_group = {group: compare(group, seeds, race) for group in groups}
    for placer in race.placers:
        if placer.startswith("policy"):
            lines.append([placer, *(_losses(by_group[group].get(placer)) for group in groups)])
    return markdown_table(lines)


def _losses(compared: Comparison | None) -> str:
    if compared is None:
        return ""
    lost = compared.above(LOSS)
    worst = ", ".join(f"{graph} {ratio:.2f}" for (graph, _), ratio in list(lost.items())[:N_WORST])
    return f"{len(lost)} of {len(compared.ratios)}" + (f": {worst}" if worst else "")


def to_svg(groups: Sequence[str], seeds: Sequence[int], race: Race) -> str:
    """A dot per placer and group left out.

    Raises:
        ValueError: no placer has run the race in every group.
    """
    by_group = {group: compare(group, seeds, race) for group in groups}
    dots = {
        placer: {group: by_group[group][placer].centre for group in groups}
        for placer in (LOWER_BOUND, *race.placers)
        if all(placer in compared and compared[placer].ratios for compared in by_group.values())
    }
    if not dots:
        raise ValueError(f"nothing to draw: '{race.name}' has not been run for all of {', '.join(groups)}")
    title = f"{race.title}: step time over that of {RIVAL} (less is better)"
    return dot_plot(dots, title)


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, evaluate, print the tables; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    names = [race.name for race in RACES]
    parser = OneLineParser(prog="agent.experiments.leave_one_out", description=__doc__)
    parser.add_argument("--groups", nargs="+", choices=GROUPS, default=list(GROUPS), metavar="GROUP")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], metavar="SEED", help="of the trainings")
    parser.add_argument("--minutes", type=float, default=20, help="of each training, on one core")
    parser.add_argument(
        "--races", nargs="+", choices=names, default=names, metavar="RACE", help=", ".join(names)
    )
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time")
    parser.add_argument("--only", choices=("train", "table"), help="do only this part")
    parser.add_argument("--figure", type=Path, metavar="FILE", help="draw the first race (.svg)")
    options = parser.parse_args(arguments)
    runs = [(group, seed) for seed in options.seeds for group in options.groups]
    races = [race for race in RACES if race.name in options.races]

    def work() -> None:
        if options.only != "table":
            side_by_side(lambda run: train_one(*run, options.minutes), runs, options.jobs)
        if options.only is None:
            for race in races:
                for group, seed in runs:
                    evaluate_one(group, seed, race)
        print(to_markdown(options.groups, options.seeds, races))
        print(losses_to_markdown(options.groups, options.seeds, races[0]))
        if options.figure:
            figure = to_svg(options.groups, options.seeds, races[0])
            write_bytes_atomic(options.figure, figure.encode())

    return exit_code("agent.experiments.leave_one_out", work)


if __name__ == "__main__":
    sys.exit(main())
