"""The file that keeps searched demonstrations, so that a resumed run does not search again."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agent.training.checkpoints import CheckpointError, read_tensors, write_tensors
from agent.training.clock import Elapsed
from agent.training.imitation.demonstrations import Demonstration
from agent.training.imitation.search import SearchedPlacements
from envs.problem import Problem

FILE = "demonstrations.safetensors"
FORMAT = "placewalk.demonstrations/3"
COUNTS = ("n_asked", "n_complete", "n_partial")


def write_searched(folder: Path, found: SearchedPlacements, elapsed: Elapsed) -> None:
    """Writes what was found into the folder of a run.

    Args:
        elapsed: what the training has taken until then.
    """
    tensors = {}
    for index, each in enumerate(found.demonstrations):
        tensors[f"{index}/problem"] = np.array(each.problem)
        tensors[f"{index}/device_of"] = np.asarray(each.device_of)
        tensors[f"{index}/regret"] = each.regret
    counts = {name: getattr(found, name) for name in COUNTS}
    state = {"n_found": len(found.demonstrations), **elapsed._asdict(), **counts}
    write_tensors(folder / FILE, FORMAT, tensors, state)


def read_searched(folder: Path, problems: Sequence[Problem]) -> tuple[SearchedPlacements, Elapsed] | None:
    """Reads what `write_searched` wrote, and what had been taken until then; None where there is no file.

    Raises:
        CheckpointError: the file is damaged, of another version, or of other problems.
    """
    path = folder / FILE
    if not path.exists():
        return None
    arrays, state = read_tensors(path, FORMAT)
    try:
        demonstrations = tuple(_demonstration(arrays, at, problems) for at in range(state["n_found"]))
        counts = {name: int(state[name]) for name in COUNTS}
        elapsed = Elapsed(float(state["wall_s"]), float(state["cpu_s"]))
        return SearchedPlacements(demonstrations, **counts), elapsed
    except (LookupError, TypeError, ValueError):
        raise CheckpointError(f"{path}: holds placements of other problems than this run's") from None


def _demonstration(
    arrays: Mapping[str, NDArray[Any]], index: int, problems: Sequence[Problem]
) -> Demonstration:
    """One of the demonstrations; a `ValueError` or `LookupError` if it is not of these problems."""
    at, device_of, regret = (arrays[f"{index}/{name}"] for name in ("problem", "device_of", "regret"))
    problem = problems[int(at)]
    n_ops, n_units, n_devices = problem.graph.n_ops, len(problem.graph.units), problem.n_devices
    if device_of.shape != (n_ops,) or regret.shape != (n_units, n_devices):
        raise ValueError("other shapes")
    if device_of.min() < 0 or device_of.max() >= n_devices:
        raise ValueError("other devices")
    return Demonstration(int(at), device_of, regret)
