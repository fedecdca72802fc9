"""The record of a study: a journal of its attempts, and `trials.csv`, made from it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from agent.training.config import EXTENDABLE, TrainConfig
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError
from graphs.system.journal import Journal
from graphs.system.json_files import FileFormatError

COMPLETE, PRUNED, FAILED, STALE = STATUSES = ("complete", "pruned", "failed", "stale")
"""The ends of an attempt: done; given up by the search; by an error; or stopped or killed, and to be done."""
RUNNING = "running"


class RecordError(InputError):
    """A record that is of another study; the message says where."""


@dataclass(frozen=True)
class StudyTrial:
    """A training of a study.

    Attributes:
        name: of its folder, unique in the study.
        component: description of the change from the base; "" for the base.
        mode: how: `base`, `without`, `replaced`, `grid`, `sampled`, or `cold` for a control without `--init`.
    """

    name: str
    config: TrainConfig
    component: str = ""
    mode: str = "base"

    @property
    def config_hash(self) -> str:
        """Hash of the settings that influence the policy."""
        decisive = {key: value for key, value in self.config.to_json().items() if key not in EXTENDABLE}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, kw_only=True)
class AttemptResult:
    """The result of an attempt at a trial, which the process that trains it reports.

    Attributes:
        resumed_from_step: update of the checkpoint that it resumed from; 0 for none.
        graphs_hash: of all graphs that the trial trains, validates and reports on.
        steps, decisions: updates made and decisions learned from, those before interruptions included.
        wall_s: seconds trained, likewise.
        parameters: numbers that the policy learns.
        final_score, best_score: greedy step time over the fastest single device, geometric mean over the
            graphs for training and validation: of the last update, and of the policy that is kept.
        held_out: the same of the policy that is kept on the graphs that chose nothing.
        checkpoint: the newest, relative to the study's folder.
        error: why it failed, in one line.
    """

    resumed_from_step: int = 0
    graphs_hash: str = ""
    steps: int = 0
    decisions: int = 0
    wall_s: float = 0.0
    parameters: int | None = None
    final_score: float | None = None
    best_score: float | None = None
    held_out: float | None = None
    checkpoint: str = ""
    error: str = ""


@dataclass(frozen=True)
class Attempt(AttemptResult):
    """One attempt at a trial: a row of `trials.csv`.

    Attributes:
        attempt: number within the study, from 1.
        retry_of: attempt that this one goes on with or repeats; None for a trial's first.
        config: that differs from the base of the study, as JSON.
    """

    study: str
    attempt: int
    trial: str
    context: str
    component: str
    mode: str
    seed: int
    status: str
    retry_of: int | None = None
    init_from: str = ""
    config: str = "{}"
    config_hash: str = ""
    git_commit: str = ""

    def ended(self, result: AttemptResult, status: str) -> Attempt:
        """Returns this attempt with its result."""
        values = {item.name: getattr(result, item.name) for item in fields(AttemptResult)}
        return replace(self, **values, status=status)


@dataclass
class Record:
    """All attempts of a study, each on disk when it begins and when it ends.

    An attempt that began and did not end was killed with the study's process; it is `stale`.

    Args:
        folder: of the study; only one process may have its record open.

    Raises:
        JournalError: the journal holds anything else.
    """

    folder: Path
    attempts: dict[int, Attempt] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._journal = Journal(self.folder / "attempts.jsonl", self._read)
        for attempt in self.attempts.values():
            if attempt.status == RUNNING:
                self.add(replace(attempt, status=STALE))
        self._write_table()

    def add(self, attempt: Attempt) -> None:
        """Notes that an attempt began (`running`) or how it ended; the last note of an attempt holds."""
        self._journal.append(asdict(attempt))
        self.attempts[attempt.attempt] = attempt
        if attempt.status != RUNNING:
            self._write_table()

    def of_trial(self, name: str) -> list[Attempt]:
        """The attempts at a trial, the first one first."""
        return [attempt for attempt in self.attempts.values() if attempt.trial == name]

    def outcome(self, name: str) -> Attempt | None:
        """Returns how a trial ended; None if it is still to be done."""
        ended = [attempt for attempt in self.of_trial(name) if attempt.status not in (RUNNING, STALE)]
        return ended[-1] if ended else None

    def _read(self, value: object, where: str) -> None:
        known = {item.name for item in fields(Attempt)}
        if not isinstance(value, dict) or value.keys() != known or not _is_attempt(value):
            raise FileFormatError(f"{where}: is no attempt of a study")
        self.attempts[value["attempt"]] = Attempt(**value)

    def _write_table(self) -> None:
        rows = [asdict(each) for each in self.attempts.values() if each.status != RUNNING]
        of_result = {item.name for item in fields(AttemptResult)}
        columns = sorted((item.name for item in fields(Attempt)), key=of_result.__contains__)
        write_csv(self.folder / "trials.csv", columns, [[row[name] for name in columns] for row in rows])


def _is_attempt(values: Mapping[str, Any]) -> bool:
    return (
        type(values["attempt"]) is int
        and isinstance(values["trial"], str)
        and values["status"] in (*STATUSES, RUNNING)
    )
