"""Traversal orders compared: policies trained and placed in each, family by family.

`python -m agent.experiments.orders` trains what is not trained yet and prints the tables.

Every order gets the same decisions and the same graphs; how good its policy was at the processor time that
the quickest order took in all is read off its learning curve. Arms:

- `rollout`: all features. In program order the simulated prefix and the rollouts are exact, elsewhere they
  are guesses, so orders differ in what their features say too.
- `prefix`: every order gets the same partial simulation of the ops decided so far, and no rollouts, so what
  is left is the order.
- `improve`: placements are improved on `placeto-k80:3` by reinforcement alone, as Wang et al. 2022
  (arXiv 2201.09676) did, on the three families of theirs.

Orders are compared on graphs that chose nothing. The trainings are the trials of a study, `runs/orders`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import astuple, fields
from pathlib import Path
from typing import Any

from agent.experiments.launcher import exit_code, train_all, trials_of
from agent.experiments.orders.report import print_report
from agent.experiments.orders.rows import OrderRow, Point
from agent.studies.record import COMPLETE, Attempt, Record
from agent.studies.trial_process import read_judgement
from agent.training.metrics import CPU_S, step_time_name
from agent.training.run_folder import run_folder
from graphs.system.command_line import OneLineParser
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError

CONFIG = Path(__file__).parent / "orders.json"
STUDY = "orders"
PLACETO_FAMILIES = ("cifar10", "ptb", "nmt")
FAMILIES = (*PLACETO_FAMILIES, "gpt", "vit", "moe")
STUDIED = ("topo", "b-level", "reversed-topo", "dfs-preorder", "dfs-postorder", "bfs", "alpha", "random")
"""Those of Wang et al. 2022 but for the lexicographic one, and b-level."""
ARMS: dict[str, dict[str, Any]] = {
    "rollout": {},
    "prefix": {"feature_set": "consumers"},
    "improve": {
        "mdp": "improve",
        "start": "single",
        "passes": 1,
        "cluster": ("placeto-k80:3",),
        "demonstrations": 0,
        "dagger_rounds": 0,
    },
}
"""The settings of the training that each arm changes."""
HELD_OUT = step_time_name("held_out", "single")


def trial_of(arm: str, family: str, order: str) -> str:
    """Name of a trial, without its seed."""
    return f"{arm}.{family}.{order}"


def changes_of(
    arms: Sequence[str], families: Sequence[str], orders: Sequence[str]
) -> dict[str, dict[str, Any]]:
    """Settings of each trial that are others than those that all share."""
    return {
        trial_of(arm, family, order): {**ARMS[arm], "families": (family,), "order": (order,)}
        for arm in arms
        for family in families
        if arm != "improve" or family in PLACETO_FAMILIES
        for order in orders
    }


def read_rows(folder: Path) -> tuple[list[OrderRow], list[Point]]:
    """Reads what the trials of a study came to that are complete.

    Raises:
        JournalError, InputError: a file of the study is damaged.
    """
    rows: list[OrderRow] = []
    points: list[Point] = []
    for attempt in Record(folder).attempts.values():
        if attempt.status == COMPLETE:
            curve = list(_curve(folder, attempt))
            points += curve
            rows += _rows(folder, attempt, curve[-1].cpu_s if curve else 0.0)
    return rows, points


def _rows(folder: Path, attempt: Attempt, cpu_s: float) -> Iterator[OrderRow]:
    arm, family, order = attempt.component.split(".")
    for graph, ratio in read_judgement(folder / "trials" / attempt.trial).items():
        yield OrderRow(arm, family, order, attempt.seed, graph, ratio, attempt.decisions, cpu_s)


def _curve(folder: Path, attempt: Attempt) -> Iterator[Point]:
    arm, family, order = attempt.component.split(".")
    for line in (folder / "trials" / attempt.trial / "metrics.jsonl").read_text().splitlines():
        found = json.loads(line)
        if found.get(HELD_OUT) is not None:
            yield Point(arm, family, order, attempt.seed, found[CPU_S], found[HELD_OUT])


def main(arguments: Sequence[str] | None = None) -> int:
    """Train, print the tables; returns 0: done, 1: a training failed or was stopped, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.orders", description=__doc__)
    parser.add_argument("--arms", nargs="+", choices=ARMS, default=list(ARMS), metavar="ARM")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="FAMILY")
    parser.add_argument("--orders", nargs="+", default=list(STUDIED), metavar="ORDER")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2], help="of the trainings")
    parser.add_argument("--jobs", type=int, default=2, help="trainings at a time, one core each")
    parser.add_argument("--only", choices=("table",), help="do only this part, with what is trained")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write rows and curves (.csv.gz)")
    options = parser.parse_args(arguments)

    def work() -> None:
        if options.only is None:
            changes = changes_of(options.arms, options.families, options.orders)
            train_all(STUDY, "grid", trials_of(CONFIG, 0.0, changes, options.seeds), options.jobs)
        folder = run_folder(STUDY)
        if not folder.is_dir():
            raise InputError(f"{folder}: there is no study; run without --only")
        rows, points = read_rows(folder)
        if options.out:
            options.out.mkdir(parents=True, exist_ok=True)
            _write(options.out / "orders.csv.gz", OrderRow, rows)
            _write(options.out / "orders_curves.csv.gz", Point, points)
        print_report(rows, points)

    return exit_code("agent.experiments.orders", work)


def _write(path: Path, kind: type, rows: Sequence[Any]) -> None:
    write_csv(path, [item.name for item in fields(kind)], [astuple(row) for row in rows])
