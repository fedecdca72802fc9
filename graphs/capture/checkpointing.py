"""Notices activation checkpointing, which a trace sees through: it records no recomputation."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from torch.utils import checkpoint

DROPPED = (
    "torch.utils.checkpoint is captured as a plain call: the step neither recomputes activations nor saves "
    "their memory, here and where it is run"
)


@contextmanager
def noticed_checkpoints() -> Iterator[list[str]]:
    """Gives a list that is filled once `torch.utils.checkpoint`, reentrant or not, is called.

    It replaces the two names that `checkpoint` looks up when it is called, in torch 2.13 and 2.14: the
    function itself may have been imported before.
    """
    seen: list[str] = []
    reentrant, other = checkpoint.CheckpointFunction, checkpoint._checkpoint_without_reentrant_generator

    def apply(*arguments: Any) -> Any:
        seen[:] = [DROPPED]
        return reentrant.apply(*arguments)  # type: ignore[no-untyped-call]

    def generator(*arguments: Any, **named: Any) -> Any:
        seen[:] = [DROPPED]
        return other(*arguments, **named)

    with (
        patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=apply)),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield seen
