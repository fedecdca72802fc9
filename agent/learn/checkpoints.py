"""Checkpoints: tensors and JSON in one safetensors file with a checksum, written atomically.

Of `PlacementPPO` they hold weights, optimizer, counters and callbacks.

Nothing is unpickled. What a file holds is what was written, or it is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save
from torch import Tensor, nn

from graphs.system.errors import InputError
from graphs.system.json_fields import MAX_INTEGER
from graphs.system.json_files import is_irregular, write_bytes_atomic

FORMAT = "placewalk.ppo/2"
GENERATIONS = 2
"""Checkpoints that are kept."""

Arrays = Mapping[str, NDArray[Any]]


class CheckpointError(InputError):
    """A file of a training that cannot be read or does not fit its run; the message says which and why."""


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """All that a training needs to resume: tensors by name, and JSON values.

    Attributes:
        path: file that it was read from, if it was.
    """

    tensors: Mapping[str, Tensor]
    state: Mapping[str, Any]
    path: Path | None = None


def under(prefix: str, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Selects tensors whose names begin with a prefix, by the rest of their names."""
    return {name.removeprefix(prefix): t for name, t in tensors.items() if name.startswith(prefix)}


class CheckpointFolder:
    """The checkpoints of one run; the newest `GENERATIONS` are kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    @property
    def files(self) -> list[Path]:
        """The files of all checkpoints, the oldest first."""
        return [path for path in sorted(self.folder.glob("*.safetensors")) if path.stem.isdecimal()]

    def save(self, updates: int, content: bytes) -> None:
        """Writes a checkpoint at once, and drops those that it makes too old.

        It drops those of later updates too: they are damaged, as training went on from one before them.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        path = self.folder / f"{updates:08d}.safetensors"
        write_bytes_atomic(path, content)
        files = self.files
        n_until_now = files.index(path) + 1
        for stale in (*files[: max(n_until_now - GENERATIONS, 0)], *files[n_until_now:]):
            stale.unlink()

    def latest(self, announce: Callable[[str], None] = lambda line: None) -> Checkpoint | None:
        """Reads the newest checkpoint that can be read, or returns None if there is no checkpoint.

        Args:
            announce: called, if that is not the newest one, with what is wrong and which is used.

        Raises:
            CheckpointError: there are some, but each is damaged, foreign or of another version.
        """
        errors: list[CheckpointError] = []
        for path in reversed(self.files):
            try:
                checkpoint = read_checkpoint(path)
            except CheckpointError as error:
                errors.append(error)
                continue
            if errors:
                announce(f"{errors[0]}; resumes from {path.name}, the newest checkpoint that can be read")
            return checkpoint
        if errors:
            others = ", nor can the one before be read" if len(errors) > 1 else ""
            raise CheckpointError(f"{errors[0]}{others}; start a new training under another name")
        return None


@contextmanager
def restoring(checkpoint: Checkpoint) -> Iterator[None]:
    """Turns errors within the block into a `CheckpointError`, as the checkpoint is not that of this run."""
    try:
        _check_numbers(checkpoint.state)
        updates, path = checkpoint.state["updates"], checkpoint.path
        if path is not None and path.stem.isdecimal() and int(path.stem) != updates:
            raise ValueError(f"it is of update {updates}")
        yield
    except CheckpointError:
        raise
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(
            f"{checkpoint.path}: does not fit this run ({type(error).__name__}: {reason}); "
            "put the run's own checkpoint back, or start a new training under another name"
        ) from error


def _check_numbers(state: Mapping[str, Any]) -> None:
    for key, value in state.items():
        if key in _RULES and not _RULES[key](value):
            raise ValueError(f"{key} is {value!r}")
        if isinstance(value, Mapping):
            _check_numbers(value)


def _is_number(value: object, least: float = -math.inf) -> bool:
    return type(value) in (int, float) and value >= least  # type: ignore[operator]


_RULES: Mapping[str, Callable[[Any], bool]] = {
    **dict.fromkeys(
        ("timesteps", "updates", "epochs", "best_decisions"),
        lambda n: type(n) is int and 0 <= n <= MAX_INTEGER,
    ),
    **dict.fromkeys(("wall_s", "cpu_s", "minutes"), lambda x: _is_number(x, 0) and x < math.inf),
    "best_score": lambda x: _is_number(x, 0),
    "least": lambda logs: all(map(_is_number, logs)),
}
"""Checks of the numbers in the state of a training, by key, wherever they are in it."""


def content_of(checkpoint: Checkpoint) -> bytes:
    """Returns a checkpoint as the content of a safetensors file with a checksum."""
    tensors = {name: t.detach().cpu().contiguous().numpy() for name, t in checkpoint.tensors.items()}
    text = json.dumps(checkpoint.state)
    metadata = {"format": FORMAT, "state": text, "sha256": _checksum(tensors, text)}
    return save(tensors, metadata=metadata)


def read_checkpoint(path: Path) -> Checkpoint:
    """Reads a file of `content_of`.

    Raises:
        CheckpointError: the file cannot be read, is of another format or version, or was changed since.
    """
    tensors, state = _read_tensors(path)
    return Checkpoint({name: torch.from_numpy(t) for name, t in tensors.items()}, state, path)


def _read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    if is_irregular(path):
        raise CheckpointError(f"{path}: is no regular file; remove it")
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            if (format := metadata.get("format", "")) != FORMAT:
                is_ours = format.startswith(f"{FORMAT.partition('/')[0]}/")
                other = f"format is {format!r}, not {FORMAT!r}, so it is of another version"
                raise CheckpointError(f"{path}: {other if is_ours else f'is no {FORMAT} file'}")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (no mapping)
        text, checksum = metadata["state"], metadata["sha256"]
    except KeyError as error:
        raise CheckpointError(f"{path}: is damaged: its header has no {error}") from None
    except (SafetensorError, OSError) as error:
        raise CheckpointError(f"{path}: cannot be read: {error}") from None
    if _checksum(tensors, text) != checksum:
        raise CheckpointError(f"{path}: is damaged: its checksum is not that of its content")
    try:
        state = json.loads(text)
    except (RecursionError, ValueError) as error:
        raise CheckpointError(f"{path}: holds a state that is no JSON: {error}") from None
    if not isinstance(state, dict):
        raise CheckpointError(f"{path}: holds a state that is no JSON object")
    return tensors, state


def _checksum(tensors: Arrays, state: str) -> str:
    """SHA-256, in hexadecimal, of the state, and of the names, types, shapes and bytes of the tensors."""
    digest = hashlib.sha256(state.encode())
    for name in sorted(tensors):
        tensor = tensors[name]
        digest.update(f"\n{name!r} {tensor.dtype.str} {tensor.shape}\n".encode())
        digest.update(np.ascontiguousarray(tensor).data)
    return digest.hexdigest()


@runtime_checkable
class Stateful(Protocol):
    """A callback whose state is saved with the model; a model has at most one of each class."""

    def state_dict(self) -> dict[str, Any]:
        """Returns tensors and JSON values by name."""

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continues from such a state.

        Raises:
            LookupError, RuntimeError, TypeError, ValueError: the state is not of this callback.
        """


class Saved(Protocol):
    """The attributes of `PlacementPPO` that are its state."""

    policy: Any
    num_timesteps: int
    updates: int
    _n_updates: int
    stateful_callbacks: list[Stateful]


def capture(ppo: Saved) -> Checkpoint:
    """Captures weights, optimizer, counters and callbacks between two updates."""
    tensors = {f"policy/{name}": tensor for name, tensor in ppo.policy.state_dict().items()}
    for index, slots in ppo.policy.optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": torch.as_tensor(value) for slot, value in slots.items()}
    callbacks: dict[str, dict[str, Any]] = {}
    for callback in ppo.stateful_callbacks:
        name, state = type(callback).__name__, callback.state_dict()
        callbacks[name] = {key: value for key, value in state.items() if not isinstance(value, Tensor)}
        tensors |= {f"{name}/{key}": value for key, value in state.items() if isinstance(value, Tensor)}
    counters = {"timesteps": ppo.num_timesteps, "updates": ppo.updates, "epochs": ppo._n_updates}
    return Checkpoint(tensors, {**counters, "callbacks": callbacks})


def restore(ppo: Saved, checkpoint: Checkpoint) -> None:
    """Restores weights, optimizer and counters in a new PPO.

    Raises:
        LookupError, RuntimeError, TypeError, ValueError: the checkpoint is of another network.
    """
    tensors, state = checkpoint.tensors, checkpoint.state
    ppo.policy.load_state_dict(under("policy/", tensors))
    slots, weights = dict[int, dict[str, Tensor]](), list(ppo.policy.parameters())
    for name, tensor in under("optimizer/", tensors).items():
        index, slot = name.split("/")
        slots.setdefault(int(index), {})[slot] = tensor
        if tensor.shape not in (weights[int(index)].shape, ()):  # torch would find that much later
            raise ValueError(f"optimizer/{name} has the shape {tuple(tensor.shape)}")
    groups = ppo.policy.optimizer.state_dict()["param_groups"]
    ppo.policy.optimizer.load_state_dict({"state": slots, "param_groups": groups})
    ppo.num_timesteps, ppo.updates, ppo._n_updates = state["timesteps"], state["updates"], state["epochs"]


def restore_callbacks(callbacks: Iterable[Stateful], checkpoint: Checkpoint) -> None:
    """Restores those callbacks whose class was saved.

    Raises:
        CheckpointError, LookupError, RuntimeError, TypeError, ValueError: a state is not of its callback.
    """
    saved = checkpoint.state["callbacks"]
    for callback in callbacks:
        name = type(callback).__name__
        if name in saved:
            callback.load_state_dict({**saved[name], **under(f"{name}/", checkpoint.tensors)})


def check_policy(network: nn.Module, checkpoint: Checkpoint) -> None:
    """Checks that a captured state has the weights of a network that was saved with it.

    Raises:
        CheckpointError: they differ.
    """
    saved = under("policy/placer.network.", checkpoint.tensors)
    for name, weights in network.state_dict().items():
        if name not in saved or not torch.equal(weights.cpu(), saved[name]):
            raise CheckpointError(
                f"{checkpoint.path}: was not saved with the policy beside it ({name} differs); "
                "put the files of one save together, or read the policy alone with load_policy"
            )
