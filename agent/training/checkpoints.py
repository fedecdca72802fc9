"""Checkpoints: tensors and JSON in one safetensors file, written atomically; nothing is unpickled."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from graphs.io.json_files import write_bytes_atomic

FORMAT = "placewalk.checkpoint/2"


class CheckpointError(ValueError):
    """A checkpoint that cannot be read; the message says which."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a training needs to go on: tensors by name, and JSON values."""

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Selects tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


class CheckpointFolder:
    """The checkpoints of one run; the newest two are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def save(self, iteration: int, checkpoint: Checkpoint) -> None:
        """Writes a checkpoint at once and drop those that it makes too old."""
        self.folder.mkdir(parents=True, exist_ok=True)
        metadata = {"format": FORMAT, "state": json.dumps(checkpoint.state)}
        tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in checkpoint.tensors.items()}
        write_bytes_atomic(self.folder / f"{iteration:08d}.safetensors", save(tensors, metadata=metadata))
        for stale in self._files()[:-2]:
            stale.unlink()

    def latest(self) -> Checkpoint | None:
        """Reads the newest checkpoint, or returns None where there is none.

        Raises:
            CheckpointError: it is corrupt, foreign or of another version.
        """
        files = self._files()
        return _read(files[-1]) if files else None

    def _files(self) -> list[Path]:
        return sorted(self.folder.glob("[0-9]*.safetensors"))


def _read(path: Path) -> Checkpoint:
    try:
        with safe_open(path, framework="pt") as file:
            metadata = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
    except (SafetensorError, OSError) as error:
        raise CheckpointError(
            f"{path}: cannot be read: {error}; delete it to go on from the one before"
        ) from None
    if metadata.get("format") != FORMAT:
        raise CheckpointError(
            f"{path}: format is {metadata.get('format')!r}, not {FORMAT!r}, so it is of another version; "
            "train anew under another name"
        )
    return Checkpoint(tensors, json.loads(metadata["state"]))
