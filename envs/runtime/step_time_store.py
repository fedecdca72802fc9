"""Stores measured step times of placements, so that none is measured twice."""

from __future__ import annotations

import hashlib
from dataclasses import asdict
from pathlib import Path

import numpy as np

from envs.runtime.step_meter import MeasuredStep, StepMeter
from graphs.identity import content_hash
from graphs.system import json_fields
from graphs.system.array_types import IntArray
from graphs.system.json_files import Journal

KEYS = frozenset({"placement", "median_s", "low_s", "high_s", "n_steps", "failure"})


class StepTimeStore:
    """Measures placements of one captured step, and stores each time in a file at once.

    What failed is in the file with its reason, and is measured again where the file is opened again.

    Args:
        path: one JSON object a line; a last line that a crash cut short is measured again.
        devices: names of the devices that the meter's processes are; times on others are others.

    Raises:
        JournalError: the file holds anything else.
    """

    def __init__(self, path: Path, meter: StepMeter, devices: list[str]) -> None:
        self._meter = meter
        self._step = hashlib.sha256(f"{content_hash(meter.captured.graph)} {devices}".encode()).hexdigest()
        self._known: dict[str, MeasuredStep] = {}
        self._journal = Journal(path, self._read)

    def measure(
        self, device_of: IntArray, *, round: int | None = None, n_steps: int | None = None
    ) -> MeasuredStep:
        """Returns the time of a placement, measured now or before.

        Args:
            device_of: device of each op, int (n_ops,).
            round: which of several measurements of the placement it is; None for the only one.
        """
        placed = np.ascontiguousarray(device_of, dtype=np.int64).tobytes()
        which = b"" if round is None else f" round {round}".encode()
        key = hashlib.sha256(self._step.encode() + placed + which).hexdigest()
        if key not in self._known:
            self._known[key] = self._meter.measure(device_of, n_steps)
            values = asdict(self._known[key]).items()
            record = {name: None if value != value else value for name, value in values}
            self._journal.append({"placement": key} | record)
        return self._known[key]

    def _read(self, value: object, where: str) -> None:
        record = json_fields.fields(value, where, KEYS)
        low_s, median_s, high_s = (
            np.nan if record[name] is None else json_fields.number(record[name], f"{where}: {name}")
            for name in ("low_s", "median_s", "high_s")
        )
        n_steps = json_fields.integer(record["n_steps"], f"{where}: n_steps")
        failure = json_fields.text(record["failure"], f"{where}: failure")
        step = MeasuredStep(median_s, low_s, high_s, n_steps, failure)
        placement = json_fields.name(record["placement"], f"{where}: placement")
        if step.feasible:
            self._known[placement] = step
