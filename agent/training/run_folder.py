"""The folder of a run: made once, never overwritten, used by one process at a time."""

from __future__ import annotations

import fcntl
import platform
import re
import subprocess
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import IO, Any

from agent.training.config import TrainConfig
from graphs.io.json_files import read_json, write_json_atomic

RUNS = Path("runs")
PACKAGES = ("torch", "torch-geometric", "stable-baselines3", "sb3-contrib", "gymnasium", "numpy", "numba")
PROVENANCE = ("versions", "git_commit")
"""Keys of `config.json` beside the configuration."""


class RunError(ValueError):
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


def check_is_new(name: str) -> Path:
    """Returns the folder of a run yet to be made.

    Raises:
        RunError: it exists.
    """
    folder = run_folder(name)
    if folder.exists():
        raise RunError(f"run '{name}' exists; go on with it by --resume, or choose another --name")
    return folder


def create(folder: Path, config: TrainConfig) -> None:
    """Makes the folder and writes `config.json`.

    Raises:
        RunError: it was made in the meantime.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    try:
        folder.mkdir()
    except FileExistsError:
        raise RunError(f"run '{folder.name}' exists; choose another --name") from None
    write_json_atomic(folder / "config.json", {**config.to_json(), **provenance()})


def read_config(name: str) -> TrainConfig:
    """Reads the configuration that a run was started with.

    Raises:
        RunError: there is no such run, or it has ended.
        ConfigError, FileFormatError: its `config.json` was changed into something else.
    """
    folder = run_folder(name)
    if not (folder / "config.json").is_file():
        raise RunError(f"there is no run '{name}' to go on with; start it without --resume")
    return config_from_file(folder / "config.json")


def config_from_file(path: Path, base: TrainConfig | None = None) -> TrainConfig:
    """Reads a configuration file; a run's `config.json` is one too.

    Raises:
        ConfigError: an unknown key or a bad value.
        FileFormatError: no readable JSON file.
    """
    values = read_json(path)
    if isinstance(values, Mapping):
        values = {key: value for key, value in values.items() if key not in PROVENANCE}
    return TrainConfig.from_json(values, str(path), base)


def lock(folder: Path) -> IO[str]:
    """Locks a run for this process, until the file returned is closed or the process dies.

    Raises:
        RunError: another process holds it.
    """
    file = (folder / ".lock").open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise RunError(
            f"run '{folder.name}' is being trained by another process; wait for it or stop it"
        ) from None
    return file


def provenance() -> dict[str, Any]:
    """Collects versions of Python, this project and the packages it depends on, and the git commit if any."""
    versions = {"python": platform.python_version()}
    for package in ("placewalk", *PACKAGES):
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            versions[package] = "not installed"
    return {"versions": versions, "git_commit": _git_commit()}


def _git_commit() -> str | None:
    command = ["git", "rev-parse", "HEAD"]
    try:
        answer = subprocess.run(
            command, cwd=Path(__file__).parent, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()
