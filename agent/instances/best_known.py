"""The best known placement of each instance, and who found it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np

from envs.placements.placement import Placement
from graphs.system.csv_files import write_csv
from graphs.system.json_files import read_json_lines, write_json_lines_atomic

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


def read_best_known(folder: Path = DATA) -> dict[str, BestKnown]:
    """Reads the table of the best known answers by instance."""
    kinds = get_type_hints(BestKnown)
    with (folder / TABLE).open(newline="", encoding="utf-8") as lines:
        rows = [{name: kinds[name](cell) for name, cell in line.items()} for line in csv.DictReader(lines)]
    return {row["instance"]: BestKnown(**row) for row in rows}


def read_placements(folder: Path = DATA) -> dict[str, Placement]:
    """Reads the best known placements by instance."""
    records = [cast("Mapping[str, Any]", value) for _, value in read_json_lines(folder / PLACEMENTS)]
    return {
        record["instance"]: Placement(
            np.array(record["device_of"]),
            None if record["stage_of"] is None else np.array(record["stage_of"]),
            tuple(record["recompute"]),
        )
        for record in records
    }


def write_best_known(rows: Iterable[BestKnown], placements: Mapping[str, Placement], folder: Path) -> None:
    """Writes the placements and then the table, sorted by instance; no step is ever without its placement."""
    ordered = sorted(rows, key=lambda row: row.instance)
    records = (
        {
            "instance": row.instance,
            "device_of": placements[row.instance].device_of.tolist(),
            "stage_of": None if (stages := placements[row.instance].stage_of) is None else stages.tolist(),
            "recompute": placements[row.instance].recompute,
        }
        for row in ordered
    )
    write_json_lines_atomic(folder / PLACEMENTS, records)
    write_csv(folder / TABLE, [item.name for item in fields(BestKnown)], map(astuple, ordered))
