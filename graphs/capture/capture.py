"""Captures a PyTorch module as the op graph of its whole training (or inference) step."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.utils import checkpoint

from graphs.capture.autocast import cuda_autocast
from graphs.capture.captured_step import CapturedStep
from graphs.capture.graph_builder import GraphBuilder
from graphs.capture.loss import CaptureError, Loss, averaged_line
from graphs.capture.optimizers import OPTIMIZERS
from graphs.capture.source_lines import SourceLines
from graphs.capture.step import Step, unwrapped
from graphs.capture.tracing import trace, uncollected
from graphs.op_graph import OpGraph
from graphs.system.errors import printable

__all__ = ["OPTIMIZERS", "CaptureError", "capture", "capture_step"]
DROPPED = (
    "torch.utils.checkpoint is captured as a plain call: the step neither recomputes activations nor saves "
    "their memory, here and where it is run"
)


def _print_notice(notice: str) -> None:
    print(notice, file=sys.stderr)


def capture(
    module: nn.Module,
    inputs: Any,
    *,
    optimizer: str | None = "adam",
    training: bool = True,
    loss: Loss | None = None,
    name: str | None = None,
    family: str = "",
    sources: bool = False,
    notify: Callable[[str], None] = _print_notice,
) -> OpGraph:
    """Captures the forward, backward and optimizer ops of a module, without running it or copying a weight.

    Every tensor is fake, so a module on the meta device takes no memory. A view is the tensor behind it.
    Parameters, buffers and inputs are source ops: each stands right before the first op that reads
    it, in the same placement unit. The optimizer update of a parameter is in that unit too.

    Args:
        module: any module that `torch.export` or `make_fx` can trace; it is not changed. In training its own
            train and evaluation modes hold; in inference all of it is in evaluation mode.
        inputs: its arguments: one tensor, a sequence, or a mapping by keyword; of any nesting, on any device.
        optimizer: key of `OPTIMIZERS`, or None for a step that ends with the gradients. Unused in inference.
        training: whether to capture the backward pass of the loss too. If false, only the weights are
            resident.
        loss: the key or attribute of the loss in what the module returns, or a function of that. By default a
            scalar `loss` in it, else a scalar result or the first scalar of a tuple, else the mean of the
            float outputs, with a notice that names them.
        name: name of the graph; the class of the module by default.
        sources: whether ops have a `source`, the line of code that ran them, and a `shape`.
        notify: what to do with a line that tells what the graph lacks: print it to stderr by default.

    Returns:
        Op names are paths: `module/op`, `gradients/module/op` and `adam/parameter`; `module@2` is its third
        call. What cannot be printed in a name is escaped. `resident_bytes` of a parameter are weights,
        gradient (if it gets one) and optimizer state. A sparse gradient is the rows that were looked up, and
        the update touches those alone. Ops and sources have a `dtype`, products and convolutions a `gemm`.

    Raises:
        CaptureError: an unknown optimizer, or a model that cannot be traced; one line with the line of the
            model's code and the op or the reason.
    """
    return capture_step(
        module,
        inputs,
        optimizer=optimizer,
        training=training,
        loss=loss,
        name=name,
        family=family,
        sources=sources,
        notify=notify,
    ).graph


def capture_step(
    module: nn.Module,
    inputs: Any,
    *,
    optimizer: str | None = "adam",
    training: bool = True,
    loss: Loss | None = None,
    name: str | None = None,
    family: str = "",
    sources: bool = False,
    notify: Callable[[str], None] = _print_notice,
) -> CapturedStep:
    """Captures a module as `capture` does, and keeps what is needed to run the step op by op.

    Raises:
        CaptureError: as `capture`.
    """
    module = unwrapped(module)
    name, family = printable(name or type(module).__name__), printable(family)
    if optimizer is not None and optimizer not in OPTIMIZERS:
        raise CaptureError(
            f"model '{name}': unknown optimizer '{optimizer}'; use one of {', '.join(OPTIMIZERS)}, or None"
        )
    try:
        if not isinstance(module, nn.Module):
            raise CaptureError("it is no torch.nn.Module; give a module first, then its inputs")
        with uncollected():
            with unset_fake_temporarily(), torch.device("cpu"), cuda_autocast() as regions:
                step = Step(module, inputs, training=training, loss=loss)
                with SourceLines() if sources else nullcontext(), noticed_checkpoints() as checkpointing:
                    traced = trace(step)
            if traced.why_no_calls:
                notify(
                    f"model '{name}': module names are lost, since torch's joint trace failed with "
                    f"{traced.why_no_calls}; placements stay valid"
                )
            for line in checkpointing if training else ():
                notify(f"model '{name}': {line}")
            if step.averaged:
                notify(f"model '{name}': {averaged_line(step.averaged)}")
            if regions.lost:
                notify(
                    f"model '{name}': an autocast region for CUDA was made before the capture, without CUDA, "
                    "and is disabled; make it in forward, or give a precision"
                )
            update = OPTIMIZERS[optimizer] if optimizer and training else None
            builder = GraphBuilder(traced, step.state, update, sources=sources)
            return CapturedStep(
                graph=replace(builder.build(name, family), tied=step.tied),
                step=step,
                trace=traced,
                storages=builder.storages,
                optimizer=update.optimizer if update else None,
                op_of_node=builder.op_of_node,
                op_of_source=builder.op_of_source,
                op_of_update=builder.op_of_update,
            )
    except CaptureError as error:
        raise CaptureError(f"model '{name}' cannot be captured: {error}") from error


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
