"""Checks of what users give to a runner, before it reaches a device."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from envs.runtime.device_program import ExecutionError
from envs.runtime.interpreter import OPTIMIZERS


def check_options(optimizer: str | None, options: Mapping[str, Any]) -> None:
    """Checks the keywords of an optimizer by making one.

    Raises:
        ExecutionError: a number is not finite, or the optimizer does not take a keyword or its value.
    """
    for name, value in options.items():
        if isinstance(value, float) and not math.isfinite(value):
            raise ExecutionError(f"{name} is {value}; give the optimizer a finite number")
    if optimizer is None:
        return
    try:
        OPTIMIZERS[optimizer]([nn.Parameter(torch.zeros(1))], **options)
    except (TypeError, ValueError, RuntimeError) as error:
        given = ", ".join(f"{name}={value!r}" for name, value in options.items())
        raise ExecutionError(f"optimizer '{optimizer}' does not take {given}: {error}") from None


def check_values(what: str, value: Any) -> None:
    """Checks that something is a tensor whose values lie densely in memory.

    Raises:
        ExecutionError: it is none.
    """
    if not isinstance(value, Tensor):
        raise ExecutionError(f"{what} is {type(value).__name__}; give a tensor")
    if value.is_meta:
        raise ExecutionError(f"{what} is a meta tensor, which has no values; give one that has")
    if value.layout is not torch.strided:
        raise ExecutionError(f"{what} is a sparse tensor; give a dense one, as .to_dense() makes")


def check_mapping(what: str, value: Any) -> None:
    """Checks that something is a mapping.

    Raises:
        ExecutionError: it is none.
    """
    if not isinstance(value, Mapping):
        raise ExecutionError(f"{what} is {type(value).__name__}; give a mapping, as the runner returns it")


def check_optimizer_state(state: Any) -> None:
    """Checks that what an optimizer is to keep of each parameter are dense tensors and numbers.

    Raises:
        ExecutionError: something else is.
    """
    check_mapping("the optimizer's state", state)
    for path, kept in state.items():
        check_mapping(f"'{path}' of the optimizer's state", kept)
        for key, value in kept.items():
            if value is not None and not isinstance(value, int | float):
                check_values(f"'{key}' of '{path}' of the optimizer's state", value)
