"""Policies that were trained without a group of families, evaluated on that group.

The trainings are the trials of a study in `runs`; their evaluations are folders in them, named by the
benchmark setting.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from agent.evaluation.policies import open_policy
from agent.evaluation.results import Trial
from agent.evaluation.spec import EvaluationSpec
from agent.experiments.equal_time.paired import Paired, pair
from agent.experiments.experiment import ExperimentError
from agent.experiments.launcher import evaluated, train_all, trained
from agent.experiments.rows import axis, markdown_table, read_rows
from agent.placers.base import Budget
from envs.cluster.presets import get_cluster
from graphs.dataset import load_family
from graphs.op_graph import OpGraph

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
FEW_PLACERS = ("heft", "rollout", "policy", "policy-sample", "policy-beam", *SEARCHES)
ALL_PLACERS = ("single", "contiguous", "memory-fill", "m-topo", "m-etf", *FEW_PLACERS)
BASELINE = "annealing"


@dataclass(frozen=True)
class BenchmarkSetting:
    """The settings of an evaluation on the families left out.

    Attributes:
        name: of the folder of the evaluation.
        cluster: preset to place on.
        every: 4 takes every fourth graph only.
    """

    name: str
    placers: tuple[str, ...]
    budget: Budget
    cluster: str = "4xv100"
    every: int = 1


SETTINGS = (
    BenchmarkSetting("10000-evaluations", ALL_PLACERS, Budget(10_000)),
    *(
        BenchmarkSetting(f"10000-evaluations-on-{cluster}", FEW_PLACERS, Budget(10_000), cluster)
        for cluster in ("2xk80", "8xa100", "2x4xa100")
    ),
    BenchmarkSetting("100000-evaluations", SEARCHES, Budget(100_000)),
    BenchmarkSetting("1-second", SEARCHES, Budget(None, 1)),
    BenchmarkSetting("10-seconds", SEARCHES, Budget(None, 10), every=4),
)


@dataclass(frozen=True)
class LeftOutRow(Paired):
    """A placer over the baseline on a group of families, in one benchmark setting."""

    setting: str
    cluster: str
    group: str


def changes_of(groups: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of the training that leaves each group out: all families of the configuration but its own."""
    families = json.loads(CONFIG.read_text(encoding="utf-8"))["families"]
    return {
        group: {"families": tuple(family for family in families if family not in GROUPS[group])}
        for group in groups
    }


def graphs_of(group: str, every: int) -> list[OpGraph]:
    """Loads the graphs of a group, or some of each family."""
    return [graph for family in GROUPS[group] for graph in load_family(family)[::every]]


def left_out_rows(
    folder: Path,
    left_out: Sequence[str],
    trials: Sequence[str],
    every: int,
    seeds: int,
    minutes: float,
    jobs: int,
) -> Iterator[list[LeftOutRow]]:
    """Trains without each group, and evaluates on it.

    Args:
        folder: has the name of the study.
        left_out: names of groups; none for all.
        trials: names of benchmark settings; none for all.
        every: 2 takes every second graph only of those of a setting.

    Raises:
        InputError: an unknown group or setting.
    """
    groups, settings = left_out or tuple(GROUPS), {setting.name: setting for setting in SETTINGS}
    for known, names in ((GROUPS, groups), (settings, trials)):
        if unknown := set(names) - set(known):
            raise ExperimentError(f"'{min(unknown)}' is unknown; use some of {', '.join(known)}")
    train_all(folder.name, CONFIG, minutes, changes_of(groups), seeds, jobs)
    found: list[LeftOutRow] = []
    for setting in (settings[name] for name in trials or settings):
        for group in groups:
            made = [
                replace(trial, seed=seed)
                for seed in range(seeds)
                for trial in _evaluated(folder.name, group, seed, setting, every, jobs)
            ]
            found += (
                LeftOutRow(**asdict(own), setting=setting.name, cluster=setting.cluster, group=group)
                for own in pair(made, BASELINE, setting.budget.seconds or 0.0)
            )
    yield found


def _evaluated(
    study: str, group: str, seed: int, setting: BenchmarkSetting, every: int, jobs: int
) -> Sequence[Trial]:
    """Evaluates a policy on the families that it was not trained on."""
    folder, graphs = trained(study, group, seed), graphs_of(group, every * setting.every)
    spec = EvaluationSpec(
        graphs=tuple(graphs),
        clusters=(get_cluster(setting.cluster),),
        placers=setting.placers,
        budget=setting.budget,
        policy=open_policy(str(folder), graphs),
    )
    return evaluated(spec, folder / setting.name, jobs)


def left_out_tables(file: Path) -> Iterator[str]:
    """Yields step times over the baseline's, and graphs won and lost; a column per group."""
    rows = read_rows(file, LeftOutRow)
    cells = {(row.setting, row.placer, row.group): row for row in rows}
    groups = axis(row.group for row in rows)
    for head, show in (
        (f"over {BASELINE}", lambda row: row.cell),
        (f"against {BASELINE}, won : lost", lambda row: f"{row.wins} : {row.losses} of {row.graphs}"),
    ):
        body = [
            [*case, *(show(cells[*case, group]) if (*case, group) in cells else "" for group in groups)]
            for case in axis((row.setting, row.placer) for row in rows)
        ]
        yield markdown_table([["setting", head, *groups], *body])
