"""Folders that one process at a time writes: made with their first files, locked, cleared of drafts; of runs.

A process may be killed at any moment. What it leaves is a folder that is complete, or a draft, which no
reader takes for a result and which the next process removes.
"""

from __future__ import annotations

import errno
import re
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout

from graphs.system.errors import InputError
from graphs.system.json_files import DRAFT, draft_of, naming, sync_folder

LOCK = ".lock"
"""File that is locked while a process writes the folder; it stays when the process has ended."""
STALE_S = 60.0
"""Age beyond which a draft folder that nobody has locked is left over."""
RUNS = Path("runs")
TRIAL = "trial:"
"""Begins the name of a trial's policy, `trial:STUDY/TRIAL`."""


class FolderError(InputError):
    """A folder that exists already or is in use; the message says what to do."""


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a folder for this process, and removes the drafts that killed processes left in it.

    The system drops the lock when the process dies.

    Raises:
        FolderError: another process holds it.
        OSError: the folder cannot be written.
    """
    with _lock(folder):
        remove_drafts(folder)
        yield


@contextmanager
def created(folder: Path, fill: Callable[[Path], None]) -> Iterator[None]:
    """Makes a folder that has its first files as soon as it is there, and locks it for this process.

    Args:
        fill: writes the first files into the folder that it is given, which is renamed afterwards.

    Raises:
        FolderError: the folder exists.
        OSError: it cannot be made.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_stale(folder.parent)
    draft = draft_of(folder)
    with ExitStack() as cleanup:
        cleanup.callback(shutil.rmtree, draft, ignore_errors=True)
        with naming(folder):
            draft.mkdir()
            cleanup.enter_context(_lock(draft))
            fill(draft)
            _rename(draft, folder)
        yield


def remove_drafts(folder: Path) -> None:
    """Removes the drafts of files in a folder and below; only a process that has it locked may do so."""
    for draft in folder.rglob(DRAFT):
        if draft.is_file():
            draft.unlink(missing_ok=True)


def _lock(folder: Path) -> AbstractContextManager[object]:
    try:
        return FileLock(folder / LOCK).acquire(blocking=False)
    except Timeout:
        raise FolderError(f"{folder}: is in use by another process; wait for it or stop it") from None


def _rename(draft: Path, folder: Path) -> None:
    if not folder.exists():
        try:
            draft.rename(folder)
            return sync_folder(folder.parent)
        except OSError as error:
            if error.errno not in (errno.EEXIST, errno.ENOTEMPTY):
                raise
    raise FolderError(f"{folder}: exists already; choose another name")


def _remove_stale(parent: Path) -> None:
    """Removes draft folders that nobody has locked, but for young ones, which are locked in a moment."""
    for draft in parent.glob(DRAFT):
        with suppress(FolderError, OSError):
            if draft.is_dir() and time.time() - draft.stat().st_mtime > STALE_S:
                with _lock(draft):
                    shutil.rmtree(draft)


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
