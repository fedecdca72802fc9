"""The file that keeps searched demonstrations, so that a resumed run does not search again."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from agent.training.checkpoints import CheckpointError
from agent.training.imitation.demonstrations import Demonstration
from agent.training.imitation.search import SearchedPlacements
from graphs.io.json_files import write_bytes_atomic

FILE = "demonstrations.safetensors"
FORMAT = "placewalk.demonstrations/1"
COUNTS = ("n_asked", "n_complete", "n_partial")


def write_searched(folder: Path, found: SearchedPlacements, wall_s: float) -> None:
    """Writes what was found into the folder of a run.

    Args:
        wall_s: seconds that the training has taken until then.
    """
    tensors = {}
    for index, each in enumerate(found.demonstrations):
        tensors[f"{index}/problem"] = np.array(each.problem)
        tensors[f"{index}/device_of"] = np.asarray(each.device_of)
        tensors[f"{index}/regret"] = each.regret
    counts = {name: getattr(found, name) for name in COUNTS}
    state = json.dumps({"n_found": len(found.demonstrations), "wall_s": wall_s, **counts})
    write_bytes_atomic(folder / FILE, save(tensors, metadata={"format": FORMAT, "state": state}))


def read_searched(folder: Path) -> tuple[SearchedPlacements, float] | None:
    """Reads what `write_searched` wrote, and its `wall_s`; None where there is no file.

    Raises:
        CheckpointError: the file is corrupt or of another version.
    """
    path = folder / FILE
    if not path.exists():
        return None
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}; delete it to search again") from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(f"{path}: is no {FORMAT} file; delete it to search again")
    state = json.loads(metadata["state"])
    demonstrations = tuple(
        Demonstration(
            int(arrays[f"{index}/problem"]), arrays[f"{index}/device_of"], arrays[f"{index}/regret"]
        )
        for index in range(state["n_found"])
    )
    return SearchedPlacements(demonstrations, **{name: state[name] for name in COUNTS}), state["wall_s"]
