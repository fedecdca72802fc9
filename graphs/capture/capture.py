"""From a PyTorch module to the op graph of its whole training (or inference) step."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphs.capture.graph_builder import Folder, Update
from graphs.capture.step import CaptureError, Step
from graphs.capture.tracing import trace, uncollected
from graphs.op_graph import OpGraph

__all__ = ["OPTIMIZERS", "CaptureError", "capture"]

OPTIMIZERS = {"adam": Update("adam", flops=10, passes=7, states=2)}
"""What each optimizer does to a parameter. Adam reads it, its gradient and two moments and writes all but the
gradient: 28 bytes per float32 element."""


def capture(
    module: nn.Module,
    inputs: Any,
    *,
    optimizer: str | None = "adam",
    training: bool = True,
    name: str | None = None,
    family: str = "",
) -> OpGraph:
    """Capture the forward, backward and optimizer ops of a module, without running it or copying a weight.

    Every tensor is fake, so a module on the meta device costs no memory. Views are folded: a tensor seen
    through views is the same tensor. Parameters, buffers and inputs are ops that stand right before their
    first user and are colocated with it; the optimizer update of a parameter is colocated with both.

    Args:
        module: any module that `torch.export` or `make_fx` can trace; it is not changed. In training its own
            train and evaluation modes hold; else all of it is traced in evaluation mode.
        inputs: its arguments: one tensor, a sequence, or a mapping by keyword; of any nesting, on any device.
        optimizer: key of `OPTIMIZERS`, or None for a step that ends with the gradients. Unused in inference.
        training: with the backward pass of the loss: the result if it is a scalar, else the mean of the float
            outputs. If false the graph is the forward pass, and only weights are resident.
        name: of the graph; the class of the module by default.

    Returns:
        Op names are paths: `module/op`, `gradients/module/op` and `adam/parameter`; `module@2` is its third
        call. `resident_bytes` of a parameter are weights, gradient (if it gets one) and optimizer state.

    Raises:
        CaptureError: an unknown optimizer, or a model that cannot be traced; one line with the op or reason.
    """
    name = name or type(module).__name__
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise CaptureError(
            f"model '{name}': unknown optimizer '{optimizer}'; use one of {', '.join(OPTIMIZERS)}, or None"
        )
    try:
        with uncollected():
            with unset_fake_temporarily(), torch.device("cpu"):
                step = Step(module, inputs, training=training)
                traced = trace(step)
            update = OPTIMIZERS[optimizer] if optimizer and training else None
            return Folder(traced, step.held, update).fold(name, family)
    except CaptureError as error:
        raise CaptureError(f"model '{name}' cannot be captured: {error}") from error
