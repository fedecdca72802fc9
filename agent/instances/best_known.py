"""The best known placement of each instance, and who found it."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np

from envs.placements.placement import Placement
from graphs.system.json_files import read_json_lines

DATA = Path(__file__).parent / "data"
"""Graphs, clusters and best known answers; `agent/instances/README.md` says whose they are."""
TABLE, PLACEMENTS = "best_known.csv", "best_placements.jsonl.gz"
SAME = 1e-9
"""Step times that differ by less, as a share, are equal."""


@dataclass(frozen=True)
class BestKnown:
    """The best known answer to an instance.

    Attributes:
        bound_s: no placement has a shorter step.
        method, found_by, commit, date: how, by whom, with which code and when it was found.
        seconds: processor seconds that it took.
    """

    instance: str
    step_time_s: float
    bound_s: float
    method: str
    found_by: str
    commit: str
    date: str
    seconds: float

    @property
    def is_optimal(self) -> bool:
        """Says whether the bound proves that nothing is better."""
        return self.step_time_s <= self.bound_s * (1 + SAME)


def read_best_known() -> dict[str, BestKnown]:
    """Reads the table of the best known answers by instance."""
    kinds = get_type_hints(BestKnown)
    with (DATA / TABLE).open(newline="", encoding="utf-8") as lines:
        rows = [{name: kinds[name](cell) for name, cell in line.items()} for line in csv.DictReader(lines)]
    return {row["instance"]: BestKnown(**row) for row in rows}


def read_placements() -> dict[str, Placement]:
    """Reads the best known placements by instance."""
    records = [cast("Mapping[str, Any]", value) for _, value in read_json_lines(DATA / PLACEMENTS)]
    return {
        record["instance"]: Placement(
            np.array(record["device_of"]),
            None if record["stage_of"] is None else np.array(record["stage_of"]),
            tuple(record["recompute"]),
        )
        for record in records
    }
