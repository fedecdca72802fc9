"""A study: a training function run as many trials, in one folder with one record.

`runs/NAME/` holds `study.json`, `trials.csv`, the journal that it is made from, and a run's folder for each
trial in `trials/`. The same command resumes a study that was stopped or killed.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.studies.record import RUNNING, Attempt, Record, StudyTrial
from agent.studies.study_config import StudyConfig
from agent.training.config import TrainConfig
from agent.training.run_folder import STUDY, provenance, run_folder
from graphs.system.errors import InputError
from graphs.system.folders import FolderError, created, locked
from graphs.system.json_files import read_json, write_json_atomic

FORMAT = "placewalk.study/1"
ITS_OWN = ("name", "context", "seed")
"""Settings of a trial that are no difference from the base."""
FREE = ("jobs", "attempts", "trials", "seeds")
"""Settings that may change when a study is resumed."""


class StudyError(InputError):
    """A study that differs or is in use; the message says what to do."""


@dataclass(frozen=True)
class Study:
    """A study with its locked folder.

    Attributes:
        base: settings of every trial, except those that the trial changes.
    """

    name: str
    folder: Path
    base: TrainConfig
    config: StudyConfig
    record: Record
    git_commit: str

    def begin(self, trial: StudyTrial) -> Attempt:
        """Notes that an attempt at a trial begins."""
        earlier = self.record.of_trial(trial.name)
        attempt = Attempt(
            study=self.name,
            attempt=len(self.record.attempts) + 1,
            trial=trial.name,
            context=self.base.context,
            component=trial.component,
            mode=trial.mode,
            seed=trial.config.seed,
            status=RUNNING,
            retry_of=earlier[-1].attempt if earlier else None,
            init_from=trial.config.init,
            config=json.dumps(differences(self.base.to_json(), trial.config.to_json())),
            config_hash=trial.config_hash,
            git_commit=self.git_commit,
        )
        self.record.add(attempt)
        return attempt

    def trial_folder(self, trial: StudyTrial) -> Path:
        """The run's folder of a trial."""
        return self.folder / "trials" / trial.name


def differences(base: Mapping[str, object], own: Mapping[str, object]) -> dict[str, object]:
    """Settings of a trial that are not those of the base."""
    return {key: value for key, value in own.items() if base.get(key) != value and key not in ITS_OWN}


@contextmanager
def open_study(base: TrainConfig, config: StudyConfig) -> Iterator[Study]:
    """Creates or reopens the folder of a study, and locks it.

    Raises:
        StudyError: the folder is of another study or run, or in use.
        JournalError: its record is damaged.
        OSError: it cannot be written.
    """
    folder = run_folder(base.name)
    known = provenance()
    identity = _identity(base, config)

    def begin(draft: Path) -> None:
        write_json_atomic(draft / STUDY, {"format": FORMAT, **identity, **known})
        (draft / "trials").mkdir()

    if folder.exists():
        _check_is_same(folder, identity)
    try:
        with locked(folder) if folder.exists() else created(folder, begin):
            commit = str(known["git_commit"] or "")
            yield Study(base.name, folder, base, config, Record(folder), commit)
    except FolderError:
        raise StudyError(
            f"study '{base.name}' is being run by another process; wait for it or stop it"
        ) from None


def _identity(base: TrainConfig, config: StudyConfig) -> dict[str, Any]:
    settings = {key: value for key, value in config.to_json().items() if key not in FREE}
    return {"training": base.to_json(), "study": settings}


def _check_is_same(folder: Path, identity: Mapping[str, Any]) -> None:
    if not (folder / STUDY).is_file():
        raise StudyError(f"{folder} is no study; choose another --name")
    found = read_json(folder / STUDY)
    if not isinstance(found, dict) or found.get("format") != FORMAT:
        raise StudyError(f"{folder / STUDY}: is no {FORMAT}; choose another --name")
    for part, values in identity.items():
        theirs = found.get(part)
        for key, value in json.loads(json.dumps(values)).items():
            if not isinstance(theirs, dict) or theirs.get(key) != value:
                was = theirs.get(key) if isinstance(theirs, dict) else None
                raise StudyError(
                    f"study '{folder.name}' was started with another --{key.replace('_', '-')} ({was!r}, "
                    f"not {value!r}); give the same value, or choose another --name"
                )
