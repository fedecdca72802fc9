"""A custom operator with a derivative, defined in a module other than the model's."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


@torch.library.custom_op("placewalk_tests::scaled", mutates_args=())
def scaled(values: Tensor, factor: float) -> Tensor:
    return values * factor


@scaled.register_fake
def _(values: Tensor, factor: float) -> Tensor:
    return torch.empty_like(values)


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.factor = inputs[1]


def _backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
    return scaled(gradient, ctx.factor), None


scaled.register_autograd(_backward, setup_context=_keep)
