"""Where the measurements of this machine are kept: a folder of the user's."""

from __future__ import annotations

import os
from pathlib import Path

FOLDER_VARIABLE = "PLACEWALK_HOME"
CLUSTER_NAME = "this"


def own_folder() -> Path:
    """Returns the folder that `PLACEWALK_HOME` names, by default `.placewalk` in the user's home."""
    named = os.environ.get(FOLDER_VARIABLE)
    return Path(named) if named else Path.home() / ".placewalk"


def own_cluster_file() -> Path:
    """Returns the file of the cluster `this`."""
    return own_folder() / f"{CLUSTER_NAME}.json"


def own_calibration_file(kind: str) -> Path:
    """Returns the file of a device kind that was measured here."""
    return own_folder() / "calibration" / f"{kind}.json"
