"""Inputs of a whole batch, cut into those of microbatches, and the loss of both."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from envs.runtime.device_program import ExecutionError
from graphs.capture.captured_step import CapturedStep
from graphs.capture.step import Step
from graphs.capture.structures import split_offsets

MOST_FLOPS = 1e11
"""Of a step whose microbatches are compared with the whole batch; seconds of a processor."""
RTOL = 1e-3
"""Difference that rounding may make between the two."""


def cut_inputs(step: Step, inputs: Any, count: int, dim: int) -> list[list[Tensor]]:
    """Cuts each input of a whole batch into those of microbatches; one of the captured shape is for all.

    Raises:
        ExecutionError: an input is none of so many microbatches.
    """
    parts = []
    for index, (tensor, captured) in enumerate(zip(step.tensors_in(inputs), step.tensors, strict=True)):
        shape, size = list(captured.shape), int(tensor[-1]) if tensor.dim() == 1 and len(tensor) else 0
        offsets = split_offsets(tensor, size, count)
        if tensor.dtype == captured.dtype and list(tensor.shape) == shape:
            parts.append([tensor] * count)
        elif offsets and (offsets[0].dtype, list(offsets[0].shape)) == (captured.dtype, shape):
            parts.append(offsets)
        else:
            if -len(shape) <= dim < len(shape):
                shape[dim] *= count
            if tensor.dtype != captured.dtype or list(tensor.shape) != shape:
                raise ExecutionError(
                    f"input {index} is {tensor.dtype} {list(tensor.shape)}; {count} microbatches have "
                    f"{captured.dtype} {shape}"
                )
            parts.append(list(tensor.chunk(count, dim)))
    return parts


def say_if_no_mean(
    captured: CapturedStep, state: Callable[[], Mapping[str, Tensor]], inputs: Any, count: int, dim: int
) -> None:
    """Prints if the mean loss of microbatches is not that of the whole batch, on this machine's processor.

    Nothing is compared if that is costly or impossible, or the step draws random numbers.

    Args:
        state: gives the parameters and buffers by path; they are not changed.
        inputs: the whole batch, which is cut along `dim`.
    """
    step = captured.step
    tags = (getattr(node.target, "tags", ()) for node in captured.trace.nodes)
    is_random = any(torch.Tag.nondeterministic_seeded in tags_of for tags_of in tags)
    if count == 1 or is_random or not step.has_loss or captured.graph.flops.sum() * count > MOST_FLOPS:
        return
    values = {path: tensor.cpu() for path, tensor in state().items()}
    try:
        parts = zip(*cut_inputs(step, inputs, count, dim), strict=True)
        with torch.no_grad():
            whole, *losses = (
                step.run([values[path].clone() for path in step.state], [tensor.cpu() for tensor in tensors])
                for tensors in (step.tensors_in(inputs), *parts)
            )
    except Exception:  # code of the user's, which may run with microbatches alone
        return
    mean = torch.stack(losses).mean()
    if not whole.isclose(mean, rtol=RTOL):
        print(
            f"the mean loss of the microbatches is {mean.item():.5g}, but {whole.item():.5g} of the whole "
            "batch at once: it is a sum, or depends on all of the batch, as a batch norm does; gradients "
            "differ too",
            file=sys.stderr,
        )
