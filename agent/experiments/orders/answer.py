"""Traversal orders compared: policies trained and placed in each, family by family.

Every order gets the same decisions and the same graphs; how good its policy was at the processor time that
the quickest order took in all is read off its learning curve. Arms:

- `rollout`: all features. In program order the simulated prefix and the rollouts are exact, elsewhere they
  are guesses, so orders differ in what their features say too.
- `prefix`: every order gets the same partial simulation of the ops decided so far, and no rollouts, so what
  is left is the order.
- `improve`: placements are improved on `placeto-k80:3` by reinforcement alone, as Wang et al. 2022
  (arXiv 2201.09676) did, on the three families of theirs.

Orders are compared on graphs that chose nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from agent.experiments.launcher import train_all
from agent.experiments.orders.rows import OrderRow, Point
from agent.studies.record import COMPLETE, Attempt, Record
from agent.studies.trial_process import read_judgement
from agent.training.metrics import CPU_S, step_time_name

CONFIG = Path(__file__).parent / "orders.json"
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


def order_rows(
    folder: Path,
    arm: str,
    families: Sequence[str],
    orders: Sequence[str],
    seeds: int,
    minutes: float,
    jobs: int,
) -> tuple[list[OrderRow], list[Point]]:
    """Trains a policy per family, order and seed; the trainings are a study in `runs`.

    Args:
        folder: has the name of the study.
    """
    changes = changes_of(arm, families, orders)
    return read_trials(train_all(folder.name, CONFIG, minutes, changes, seeds, jobs))


def changes_of(arm: str, families: Sequence[str], orders: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Settings of each trial that are others than those that all share."""
    return {
        trial_of(arm, family, order): {**ARMS[arm], "families": (family,), "order": (order,)}
        for family in families
        for order in orders
    }


def read_trials(folder: Path) -> tuple[list[OrderRow], list[Point]]:
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
