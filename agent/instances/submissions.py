"""Checks submitted placements of instances: each is simulated again, and no claim is believed."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agent.instances.best_known import (
    DATA,
    SAME,
    BestKnown,
    read_best_known,
    read_placements,
    write_best_known,
)
from agent.instances.instance import LIST, Instance, InstanceError, find_instances, find_names
from envs.placements.files import FORMAT, KEYS, PIPELINE_KEYS, placement_from_json
from envs.placements.placement import Placement
from graphs.system.errors import InputError
from graphs.system.folders import locked
from graphs.system.json_fields import fields, number, quoted, text
from graphs.system.json_files import FileFormatError, read_json

MAX_BYTES = 2**22
"""Bytes of a submission, decompressed, at most: several times the largest placement of an instance."""
MAX_FILES = 10_000
MAX_CHARS = 200
"""Characters of a text of a submission at most; it is a cell of the table of best known answers."""
TEXTS, NUMBERS = ("method", "found_by", "commit", "date"), ("step_time_s", "seconds")
"""Keys that a submission may have besides those of a placement file."""
CLAIM_ERROR = 1e-6
"""Greatest relative error of a claimed step time."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """Result of the check of a submission.

    Attributes:
        found: the answer, as the table of best known answers would hold it.
        fault: the claim that does not hold; empty if all do.
        before_s: the best known step; infinite without one.
    """

    placement: Placement
    found: BestKnown
    fault: str
    before_s: float

    @property
    def is_new_best(self) -> bool:
        """Says whether it holds and is shorter than the best known step."""
        return not self.fault and self.found.step_time_s < self.before_s * (1 - SAME)

    @property
    def line(self) -> str:
        """One line on it."""
        if self.fault:
            return f"{self.found.instance}: {self.fault}"
        step_s, bound_s = self.found.step_time_s, self.found.bound_s
        over = "proved optimal" if self.found.is_optimal else f"{step_s / bound_s:.4f} of the bound"
        new = "new best, " if self.is_new_best else ""
        than = f"{step_s / self.before_s:.6f} of the best known" if self.before_s < np.inf else "the first"
        return f"{self.found.instance}: {step_s * 1e3:.6g} ms, {over}; {new}{than}"


def submissions_of(path: Path) -> list[Path]:
    """Lists the files of a submission: a file, or all in a folder and below.

    Raises:
        InputError: there are none, or too many.
    """
    if not path.is_dir():
        return [path]
    found = (file for file in path.rglob("*.json*") if file.name.endswith((".json", ".json.gz")))
    files = sorted(islice(found, MAX_FILES + 1))
    if not 1 <= len(files) <= MAX_FILES:
        count = f"more than {MAX_FILES}" if files else "no"
        raise InputError(f"{path}: holds {count} placement files; give 1 to {MAX_FILES}")
    return files


def check_submission(path: Path, known: Mapping[str, BestKnown]) -> Verdict:
    """Simulates a submitted placement.

    Args:
        path: a placement file for an instance; it may claim a `step_time_s`, and say who found it and how.
        known: the best known answers.

    Raises:
        InputError: it is no readable placement of an instance.
    """
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise FileFormatError(
            f"{path}: has {path.stat().st_size} bytes; a submission has at most {MAX_BYTES}"
        )
    known_keys = {*PIPELINE_KEYS, *NUMBERS, *TEXTS}
    record = dict(fields(read_json(path, limit_bytes=MAX_BYTES), str(path), KEYS, known_keys, format=FORMAT))
    numbers = {key: _number(record.pop(key), f"{path}: {key}") for key in NUMBERS if key in record}
    texts = {key: _text(record.pop(key, "unknown"), f"{path}: {key}") for key in TEXTS}
    named = placement_from_json(record, str(path))
    if named.graph not in find_names(["*"]):
        raise InstanceError(f"{path}: no instance is named '{named.graph}'; {LIST}")
    (instance,) = find_instances([named.graph])
    placement = named.resolve(instance.graph, instance.cluster)
    step = instance.objective.simulate(placement)
    seconds = numbers.get("seconds", 0.0)
    found = BestKnown(instance.name, step.total_s, instance.bound_s, seconds=seconds, **texts)
    fault = _fault(instance, step.total_s, step.peak_bytes, numbers.get("step_time_s"))
    before_s = known[instance.name].step_time_s if instance.name in known else np.inf
    return Verdict(placement, found, fault, before_s)


def _number(value: object, where: str) -> float:
    if (checked := number(value, where)) < 0:
        raise FileFormatError(f"{where}: is {quoted(value)}; expected at least 0")
    return checked


def _text(value: object, where: str) -> str:
    if len(checked := text(value, where)) > MAX_CHARS:
        raise FileFormatError(f"{where}: has {len(checked)} characters; expected at most {MAX_CHARS}")
    return checked


def _fault(instance: Instance, step_s: float, peak_bytes: Any, claimed_s: float | None) -> str:
    """Says which claim does not hold; empty if all do."""
    memory = instance.cluster.memory_bytes
    if (peak_bytes > memory).any():
        at = int(np.argmax(peak_bytes - memory))
        need, has = (f"{each[at] / 1e9:.4g} GB" for each in (peak_bytes, memory))
        return f"is out of memory: {instance.cluster.devices[at].name} needs {need} and has {has}"
    if step_s < instance.bound_s * (1 - SAME):
        return f"takes {step_s:.9g} s, below the bound of {instance.bound_s:.9g} s; one of the two is wrong"
    if claimed_s is not None and abs(claimed_s - step_s) > CLAIM_ERROR * step_s:
        return f"claims a step of {claimed_s:.9g} s, but takes {step_s:.9g} s"
    return ""


def validate(path: Path, command: str) -> int:
    """Prints a verdict on each submission; returns the exit code.

    Returns:
        0 if all claims hold, 1 if one does not, 2 if a file is no placement of an instance.
    """
    code, known = 0, read_best_known()
    for file in submissions_of(path):
        try:
            verdict = check_submission(file, known)
        except InputError as error:
            print(f"{command}: {error}", file=sys.stderr)
            code = 2
            continue
        print(f"{file}: {verdict.line}", file=sys.stderr if verdict.fault else sys.stdout)
        code = max(code, int(bool(verdict.fault)))
    return code


def enter(path: Path, table: Path = DATA) -> list[str]:
    """Enters submissions in the table of the best known answers; returns a line for each new best.

    Args:
        table: folder of the table; it is locked meanwhile.

    Raises:
        InputError: a submission is no placement of an instance, or a claim does not hold; nothing is
            entered then.
        FolderError: another process enters submissions.
    """
    with locked(table):
        known, placements = read_best_known(table), read_placements(table)
        lines = []
        for file in submissions_of(path):
            verdict = check_submission(file, known)
            if verdict.fault:
                raise InstanceError(f"{file}: {verdict.line}; nothing is entered")
            if verdict.is_new_best:
                known[verdict.found.instance] = verdict.found
                placements[verdict.found.instance] = verdict.placement
                lines.append(verdict.line)
        write_best_known(known.values(), placements, table)
    return lines
