"""The names of runs, and of policies that are in their folders."""

from __future__ import annotations

import re
from pathlib import Path

from graphs.system.errors import InputError

RUNS = Path("runs")
TRIAL = "trial:"
"""Begins the name of a trial's policy, `trial:STUDY/TRIAL`."""


class RunError(InputError):
    """A run that exists, does not exist, or is in use; the message says what to do."""


def run_folder(name: str) -> Path:
    """Returns the folder of a run.

    Raises:
        RunError: a name that is empty or no plain file name.
    """
    if not name:
        raise RunError("the run has no name; give it one with --name NAME")
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._+-]{0,99}", name):
        raise RunError(f"run name {name!r}: use up to 100 letters, digits, dots, dashes and underscores")
    return RUNS / name


def policy_folder(init: str) -> str:
    """Finds the policy that a training starts from: `trial:STUDY/TRIAL` names a trial's.

    Raises:
        RunError: a name that is no plain file name.
    """
    if not init.startswith(TRIAL):
        return init
    study, _, trial = init.removeprefix(TRIAL).partition("/")
    if not (study and trial):
        raise RunError(f"init is '{init}'; write {TRIAL}STUDY/TRIAL")
    return str(run_folder(study) / "trials" / run_folder(trial).name)
