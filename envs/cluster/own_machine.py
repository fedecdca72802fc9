"""The folder of the user's that stores this machine's measurements."""

from __future__ import annotations

import os
import re
from pathlib import Path

FOLDER_VARIABLE = "PLACEWALK_HOME"
CLUSTER_NAME = "this"


def own_folder() -> Path:
    """Returns the folder that `PLACEWALK_HOME` names, by default `.placewalk` in the user's home."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path.home() / ".placewalk"


def is_own_cluster(name: str) -> bool:
    """Says whether a cluster of that name is one of this machine: `this`, or `2xcpu` and the like."""
    return name == CLUSTER_NAME or re.fullmatch(r"[1-9][0-9]{0,2}xcpu", name) is not None


def own_cluster_file(name: str = CLUSTER_NAME) -> Path:
    """Returns the file of a cluster of this machine."""
    return own_folder() / f"{name}.json"


def how_to_measure(name: str) -> str:
    """Returns the command that measures a cluster of this machine."""
    n_processes = name.removesuffix("xcpu")
    flags = "" if name == CLUSTER_NAME else f" --processes {n_processes}"
    return f"python -m agent.calibration measure{flags}"


def own_calibration_file(kind: str) -> Path:
    """Returns the file of a device kind that was measured here."""
    return own_folder() / "calibration" / f"{kind}.json"
