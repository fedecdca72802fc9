"""Notices activation checkpointing, which a trace sees through: it records no recomputation."""

from __future__ import annotations

from collections.abc import Callable, Iterator
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
    """Makes `torch.utils.checkpoint` a plain call; gives a list that is filled once it is called.

    It replaces the two names that `checkpoint` looks up when it is called, in torch 2.13 and 2.14: the
    function itself may have been imported before. The reentrant variant hides its function from autograd,
    and from a trace all gradients of it.
    """
    seen: list[str] = []
    other = checkpoint._checkpoint_without_reentrant_generator

    def apply(function: Callable[..., Any], _preserve_rng_state: bool, *arguments: Any) -> Any:
        seen[:] = [DROPPED]
        return function(*arguments)

    def generator(*arguments: Any, **named: Any) -> Any:
        seen[:] = [DROPPED]
        return other(*arguments, **named)

    with (
        patch.object(checkpoint, "CheckpointFunction", SimpleNamespace(apply=apply)),
        patch.object(checkpoint, "_checkpoint_without_reentrant_generator", generator),
    ):
        yield seen
