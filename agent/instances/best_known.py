"""The best known placement of each instance, and who found it."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Mapping
from dataclasses import astuple, dataclass, fields
from pathlib import Path
from typing import Any, cast, get_type_hints

import numpy as np

from agent.instances.instance import Instance
from agent.instances.profiles import DATA
from envs.placement.placement import Placement
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_csv
from graphs.system.json_files import read_json_lines, write_json_lines_atomic

TABLE, PLACEMENTS, REPORTED = "best_known.csv", "best_placements.jsonl.gz", "reported.csv"
DIGITS = "0123456789abcdefghijklmnopqrstuvwxyz"
"""Digits of devices and stages; a dot stands for no stage."""
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


@dataclass(frozen=True)
class Reported:
    """A step time that others report for a method of theirs, whose placement we do not have."""

    instance: str
    method: str
    step_time_s: float
    source: str


def read_best_known(folder: Path = DATA) -> dict[str, BestKnown]:
    """Reads the table of the best known answers by instance."""
    return {row.instance: row for row in _read_csv(folder / TABLE, BestKnown)}


def read_reported(folder: Path = DATA) -> list[Reported]:
    """Reads what others report of their methods."""
    return _read_csv(folder / REPORTED, Reported)


def _read_csv(path: Path, row: type[Any]) -> list[Any]:
    kinds = get_type_hints(row)
    with path.open(newline="", encoding="utf-8") as lines:
        return [
            row(**{name: kinds[name](text) for name, text in line.items()}) for line in csv.DictReader(lines)
        ]


def read_placements(folder: Path = DATA) -> dict[str, Mapping[str, Any]]:
    """Reads the records of the best known placements by instance."""
    records = [cast("Mapping[str, Any]", value) for _, value in read_json_lines(folder / PLACEMENTS)]
    return {record["instance"]: record for record in records}


def write_best_known(
    rows: Iterable[BestKnown], records: Mapping[str, Mapping[str, Any]], folder: Path = DATA
) -> None:
    """Writes the table and the placements, sorted by instance."""
    ordered = sorted(rows, key=lambda row: row.instance)
    write_csv(folder / TABLE, [item.name for item in fields(BestKnown)], map(astuple, ordered))
    write_json_lines_atomic(folder / PLACEMENTS, [records[row.instance] for row in ordered])


def encoded(instance: str, placement: Placement) -> dict[str, Any]:
    """Makes the record of a placement: a digit for the device of each op, and for its stage."""
    record: dict[str, Any] = {"instance": instance, "device_of": _digits(placement.device_of)}
    if placement.stage_of is not None:
        record["stage_of"] = _digits(placement.stage_of)
    if placement.recompute:
        record["recompute"] = list(placement.recompute)
    if placement.replicas:
        record["replicas"] = {str(stage): list(devices) for stage, devices in placement.replicas.items()}
    return record


def decoded(record: Mapping[str, Any]) -> Placement:
    """Makes the placement of a record."""
    stages, replicas = record.get("stage_of"), record.get("replicas", {})
    return Placement(
        _numbers(record["device_of"]),
        None if stages is None else _numbers(stages),
        tuple(record.get("recompute", ())),
        {int(stage): tuple(devices) for stage, devices in replicas.items()},
    )


def _digits(values: IntArray) -> str:
    return "".join("." if value < 0 else DIGITS[value] for value in values.tolist())


def _numbers(text: str) -> IntArray:
    return np.array([DIGITS.find(digit) for digit in text], dtype=np.int64)


def bound_of(instance: Instance, known: Mapping[str, BestKnown]) -> float:
    """Returns the greatest known bound on the step of an instance, in seconds."""
    return max(instance.bound_s, known[instance.name].bound_s if instance.name in known else 0.0)
