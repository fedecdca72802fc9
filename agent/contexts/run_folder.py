"""The folder of a run: made once, never overwritten, used by one process at a time."""

from __future__ import annotations

import platform
from collections.abc import Mapping
from contextlib import ExitStack
from importlib import metadata
from pathlib import Path
from typing import Any

from agent.learn.config import TrainConfig
from graphs.dataset import git_commit, project_version
from graphs.system.folders import FolderError, RunError, created, locked, run_folder
from graphs.system.json_files import read_json, write_json_atomic

STUDY = "study.json"
"""File of a folder that is a study, whose trials are runs."""
PACKAGES = ("torch", "torch-geometric", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "numba")
CONFIG, RESULT = "config.json", "result.json"
PROVENANCE = ("versions", "git_commit")
"""Keys of `config.json` beside the configuration."""


def check_is_new(name: str) -> Path:
    """Returns the folder of a run yet to be made.

    Raises:
        RunError: it exists.
    """
    folder = run_folder(name)
    if folder.exists():
        raise RunError(_refusal(name, resume=False))
    return folder


def opened(folder: Path, config: TrainConfig, *, resume: bool) -> ExitStack:
    """Makes the folder of a run with its `config.json`, or takes the one that is there, and locks it.

    Returns:
        Holds the lock until it is closed or the process dies.

    Raises:
        RunError: a folder that exists is to be made, or another process holds one that is to be taken.
        OSError: it cannot be written.
    """

    def write_config(draft: Path) -> None:
        write_json_atomic(draft / CONFIG, {**config.to_json(), **provenance()})

    with ExitStack() as lock:
        try:
            lock.enter_context(locked(folder) if resume else created(folder, write_config))
        except FolderError:
            raise RunError(_refusal(folder.name, resume=resume)) from None
        return lock.pop_all()


def read_config(name: str) -> TrainConfig:
    """Reads the configuration that a run was started with.

    Raises:
        RunError: there is no such run.
        ConfigError, FileFormatError: its `config.json` was changed into something else.
    """
    folder = run_folder(name)
    if not folder.exists():
        raise RunError(f"there is no run '{name}' to resume; start it without --resume")
    if (folder / STUDY).is_file():
        raise RunError(f"{folder} is a study; run the command that started it again to resume it")
    if not (folder / CONFIG).is_file():
        raise RunError(f"{folder}: holds no {CONFIG}, so it cannot be resumed; choose another --name")
    return config_from_file(folder / CONFIG)


def config_from_file(path: Path) -> TrainConfig:
    """Reads a configuration file; a run's `config.json` is one too.

    Raises:
        ConfigError: an unknown key or a bad value.
        FileFormatError: no readable JSON file.
    """
    values = read_json(path)
    if isinstance(values, Mapping):
        values = {key: value for key, value in values.items() if key not in PROVENANCE}
    return TrainConfig.from_json(values, str(path))


def is_finished(folder: Path) -> bool:
    """Says whether a run has ended well: used up its decisions or its time.

    Raises:
        RunError: its `result.json` was changed into something else.
        FileFormatError: it is no readable JSON file.
    """
    path = folder / RESULT
    if not path.exists():
        return False
    result = read_json(path)
    if not isinstance(result, dict) or not isinstance(result.get("finished"), bool):
        raise RunError(f"{path}: does not say whether the run has finished; remove it, then use --resume")
    return bool(result["finished"])


def provenance() -> dict[str, Any]:
    """Collects versions of Python, this project and the packages it depends on, and the git commit if any."""
    versions = {"python": platform.python_version(), "placewalk": project_version()}
    for package in PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"versions": versions, "git_commit": git_commit()}


def _refusal(name: str, *, resume: bool) -> str:
    """Why a run cannot be opened, and what to do."""
    if resume:
        return f"run '{name}' is being trained by another process; wait for it or stop it"
    return f"run '{name}' exists; resume it with --resume, or choose another --name"
