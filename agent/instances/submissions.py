"""Checks submitted placements of instances: each is simulated again, and no claim is believed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from agent.instances.best_known import SAME, BestKnown, bound_of
from agent.instances.instance import LIST, Instance, InstanceError, find_instances, find_names
from envs.placement.files import placement_from_json, placement_to_json
from envs.placement.placement import Placement
from graphs.system.errors import InputError
from graphs.system.json_fields import kind_of, number, text
from graphs.system.json_files import FileFormatError, read_json, write_json_atomic

SUFFIXES = (".json", ".json.gz")
MAX_BYTES = 2**22
"""Bytes of a submission, decompressed, at most: several times the largest placement of an instance."""
MAX_FILES = 10_000
TEXTS = ("method", "found_by", "commit", "date")
NUMBERS = ("step_time_s", "seconds")
"""Keys that a submission may have besides those of a placement file."""
CLAIM_ERROR = 1e-6
"""Greatest relative error of a claimed step time."""


@dataclass(frozen=True, eq=False)
class Verdict:
    """What a submission is worth.

    Attributes:
        found: the answer, as the table of best known answers would hold it.
        fault: one line on a claim that does not hold; empty if all do.
        best_s: the best known step before; infinite without one.
    """

    instance: Instance
    placement: Placement
    found: BestKnown
    fault: str
    best_s: float

    @property
    def is_new_best(self) -> bool:
        """Says whether it holds and is shorter than the best known step."""
        return not self.fault and self.found.step_time_s < self.best_s * (1 - SAME)

    @property
    def line(self) -> str:
        """One line on it."""
        own_s, bound_s = self.found.step_time_s, self.found.bound_s
        if self.fault:
            return f"{self.instance.name}: {self.fault}"
        over = "proved optimal" if self.found.is_optimal else f"{own_s / bound_s:.4f} of the bound"
        if self.best_s == np.inf:
            than = "new best, the first"
        elif self.is_new_best:
            than = f"new best, {own_s / self.best_s:.6f} of the one before"
        else:
            than = f"{own_s / self.best_s:.6f} of the best known"
        return f"{self.instance.name}: {own_s * 1e3:.6g} ms, {over}; {than}"


def submissions_of(path: Path) -> list[Path]:
    """Lists the files of a submission: a file, or all in a folder and below.

    Raises:
        InputError: there are none, or too many.
    """
    if not path.is_dir():
        return [path]
    found = (file for file in path.rglob("*.json*") if file.name.endswith(SUFFIXES))
    files = sorted(islice(found, MAX_FILES + 1))
    if not 1 <= len(files) <= MAX_FILES:
        raise InputError(f"{path}: holds {len(files)} placement files; give 1 to {MAX_FILES}")
    return files


def check_submissions(
    paths: Iterable[Path], known: Mapping[str, BestKnown]
) -> Iterator[tuple[Path, Verdict | InputError]]:
    """Checks each of several files; yields what it is worth, or the error that ended the check."""
    for path in paths:
        try:
            yield path, check_submission(path, known)
        except InputError as error:
            yield path, error


def check_submission(path: Path, known: Mapping[str, BestKnown]) -> Verdict:
    """Simulates a submitted placement.

    Args:
        path: a placement file for an instance; it may claim a `step_time_s`, and say who found it and how.
        known: the best known answers.

    Raises:
        InputError: it is no readable placement of an instance.
    """
    record = _read(path)
    claims = {key: record[key] for key in (*NUMBERS, *TEXTS) if key in record}
    named = placement_from_json({key: record[key] for key in record.keys() - claims.keys()}, str(path))
    for key, value in claims.items():
        (number if key in NUMBERS else text)(value, f"{path}: {key}")
    if named.graph not in find_names(["*"]):
        raise InstanceError(f"{path}: no instance is named '{named.graph}'; {LIST}")
    (instance,) = find_instances([named.graph])
    placement = named.resolve(instance.graph, instance.cluster)
    step = instance.simulate(placement)
    before = known.get(instance.name)
    texts = {key: str(claims.get(key, "unknown")) for key in TEXTS}
    seconds, bound_s = float(claims.get("seconds", 0)), bound_of(instance, known)
    found = BestKnown(instance.name, step.total_s, bound_s, seconds=seconds, **texts)
    fault = _fault(instance, step.total_s, step.peak_bytes, bound_s, claims.get("step_time_s"))
    return Verdict(instance, placement, found, fault, before.step_time_s if before else np.inf)


def _read(path: Path) -> Mapping[str, Any]:
    if path.is_file() and path.stat().st_size > MAX_BYTES:
        raise FileFormatError(
            f"{path}: has {path.stat().st_size} bytes; a submission has at most {MAX_BYTES}"
        )
    record = read_json(path, limit_bytes=MAX_BYTES)
    if not isinstance(record, dict):
        raise FileFormatError(f"{path}: is {kind_of(record)}; expected a placement, an object")
    return record


def _fault(
    instance: Instance, step_s: float, peak_bytes: Any, bound_s: float, claimed_s: float | None
) -> str:
    """Says which claim does not hold; empty if all do."""
    memory = instance.cluster.memory_bytes
    if (peak_bytes > memory).any():
        at = int(np.argmax(peak_bytes - memory))
        need, has = (f"{each[at] / 1e9:.4g} GB" for each in (peak_bytes, memory))
        return f"is out of memory: {instance.cluster.devices[at].name} needs {need} and has {has}"
    if step_s < bound_s * (1 - SAME):
        return f"takes {step_s:.9g} s, which is below the bound of {bound_s:.9g} s; one of the two is wrong"
    if claimed_s is not None and abs(claimed_s - step_s) > CLAIM_ERROR * step_s:
        return f"claims a step of {claimed_s:.9g} s, but takes {step_s:.9g} s"
    return ""


def write_submission(path: Path, instance: Instance, placement: Placement, claims: Mapping[str, Any]) -> None:
    """Writes a placement with what is claimed of it, atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    record = placement_to_json(instance.graph, instance.cluster, placement)
    write_json_atomic(path, {**record, **claims})
