"""Captures a PyTorch module as the op graph of its whole training (or inference) step."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import unset_fake_temporarily

from graphs.capture.autocast import cuda_autocast
from graphs.capture.captured_step import CapturedStep
from graphs.capture.checkpoints import marked_regions, recompute_regions
from graphs.capture.gpu_kernels import gpu_kernels, noticed_fast_paths
from graphs.capture.graph_builder import GraphBuilder
from graphs.capture.known_values import NEEDS_VALUES, KnownValues
from graphs.capture.loss import CaptureError, Loss, averaged_line
from graphs.capture.module_calls import SourceLines, module_tree
from graphs.capture.op_costs import cost_notices
from graphs.capture.step import Step, unwrapped
from graphs.capture.tracing import Trace, trace, uncollected
from graphs.capture.values import note_stored
from graphs.op_graph import OpGraph
from graphs.optimizers import DTYPES, Updates, rules_of
from graphs.step_settings import AMPERE, WHOLE, Gpu
from graphs.system.errors import logged, print_notice, printable

__all__ = ["CaptureError", "capture", "capture_step"]
FAST = "each is one fused op in eager inference (PyTorch's fast path), and its single ops here and where run"
RAN = (
    "shapes that depend on values are those of the example inputs, and so are branches; this machine's "
    "processor ran the step to find them"
)


def capture(module: nn.Module, inputs: Any, **settings: Any) -> OpGraph:
    """Captures a module's step as an op graph alone; arguments and errors are those of `capture_step`."""
    return capture_step(module, inputs, **settings).graph


def capture_step(
    module: nn.Module,
    inputs: Any,
    *,
    optimizer: Any = "adam",
    master_weights: str | torch.dtype | None = None,
    gradient_dtype: str | torch.dtype | None = None,
    training: bool = True,
    loss: Loss | None = None,
    name: str | None = None,
    gpu: Gpu | None = AMPERE,
    notify: Callable[[str], None] = print_notice,
) -> CapturedStep:
    """Captures the forward, backward and optimizer ops of a module, without copying a weight.

    Every tensor is fake, so a module on the meta device takes no memory. A module is run only if its shapes
    or branches depend on values, on the CPU, and the notice says so. A view is the tensor behind it.
    Parameters, buffers and inputs are source ops: each stands right before the first op that reads
    it, in the same placement unit. The optimizer update of a parameter is in that unit too.

    Args:
        module: any module that `torch.export` or `make_fx` can trace; it is not changed. In training its own
            train and evaluation modes hold; in inference all of it is in evaluation mode.
        inputs: its arguments: one tensor, a sequence, or a mapping by keyword; of any nesting, on any device.
        optimizer: a class of `torch.optim` by name (`adamw`, `sgd:momentum=0.9`), any optimizer class, a
            `functools.partial` of one, one or several instances, whose groups' options hold and whose other
            parameters stay as they are; or None for a step that ends with the gradients. One step of it on
            small tensors finds what it keeps. Unused in inference.
        master_weights: type (`fp32`) in which the optimizer keeps and updates a copy of narrower weights.
        gradient_dtype: type (`fp32`) in which gradients are accumulated; by default that of the weights.
        training: true to capture the backward pass of the loss too. If false, only the weights are
            resident.
        loss: the key or attribute of the loss in what the module returns, or a function of that. By default a
            scalar `loss` in it, else a scalar result or the first scalar of a tuple, else the mean of the
            float outputs, with a notice that names them.
        name: name of the graph; the class of the module by default.
        gpu: the GPUs whose kernels torch chooses; None = those of the processor.
        notify: function of a line that tells what the graph lacks: print it to stderr by default.

    Returns:
        The graph, and what is needed to run the step op by op. Op names are paths: `module/op`,
        `gradients/module/op`, `adam/parameter`, and `recompute/module/op` for what `torch.utils.checkpoint`
        runs again; `module@2` is its third call. What cannot be printed in a name is escaped.
        `resident_bytes` of a parameter are weights, gradient (if it gets one) and optimizer state. A sparse
        gradient is the rows that were looked up, and the update touches those alone. Ops and sources have a
        `dtype` and a `shape`, ops a `source` (the line of code that ran them), products and convolutions a
        `gemm`.

    Raises:
        CaptureError: an unknown optimizer or type, or a model that cannot be traced; one line with that of
            the model's code and the op or the reason.
    """
    module = unwrapped(module)
    name = printable(name or type(module).__name__)

    def say(line: str) -> None:
        notify(f"model '{name}': {line}")

    try:
        with uncollected():
            if not isinstance(module, nn.Module):
                raise CaptureError("it is no torch.nn.Module; give a module first, then its inputs")
            rules = rules_of(optimizer, module) if training else {}
            dtypes = _dtypes(master_weights, gradient_dtype, gpu)
            made = partial(Step, module, inputs, training=training, loss=loss)
            with (
                unset_fake_temporarily(),
                torch.device("cpu"),
                cuda_autocast() as regions,
                ExitStack() as stack,
            ):
                step = made()
                stack.enter_context(SourceLines())
                marked = stack.enter_context(marked_regions())
                fast = stack.enter_context(noticed_fast_paths())
                unfused = stack.enter_context(gpu_kernels(gpu)) if gpu else {}
                traced = _traced(step, made, say)
            note_stored(traced.sources, module, inputs)
            if traced.why_no_calls:
                say(
                    "module names are lost, since torch's joint trace failed with "
                    f"{traced.why_no_calls}; placements stay valid"
                )
            for line in (*recompute_regions(traced, marked), *unfused, *traced.lost):
                say(line)
            if training and not traced.gradients:
                say("nothing is trained: no parameter requires a gradient, or none reaches the loss")
            if fast and not training:
                say(f"{', '.join(fast)}: {FAST}")
            if step.averaged:
                say(averaged_line(step.averaged, summed=step.averaged == loss))
            if regions.lost:
                say(
                    "an autocast region for CUDA was made before the capture, without CUDA, "
                    "and is disabled; make it in forward, or give a precision"
                )
            updates = Updates(rules, *dtypes).of_trained(traced.gradients, step.state, say)
            builder = GraphBuilder(traced, step.state, updates)
            graph = builder.build(name)
            for line in cost_notices(builder.op_of_node):
                say(line)
            if cells := {type(part).__name__ for part in module.modules() if isinstance(part, nn.RNNBase)}:
                say(f"{', '.join(sorted(cells))}: captured as ops of cells; cuDNN is faster on one GPU")
            return CapturedStep(
                graph=replace(graph, tied=step.tied, tree=module_tree(step.model)),
                step=step,
                trace=traced,
                storages=builder.storages,
                updates=updates,
                op_of_node=builder.op_of_node,
                op_of_source=builder.op_of_source,
                op_of_update=builder.op_of_update,
            )
    except CaptureError as error:
        raise CaptureError(f"model '{name}' cannot be captured: {error}{logged(error)}") from None


def _dtypes(master_weights: Any, gradient_dtype: Any, gpu: Gpu | None) -> list[Any]:
    """Returns the types of master weights and of gradients, None where they are those of the weights."""
    dtypes = [DTYPES.get(dtype, dtype) for dtype in (master_weights, gradient_dtype)]
    if not {*dtypes} <= {None, *DTYPES.values()}:
        wrong = f"master_weights is {master_weights!r} and gradient_dtype {gradient_dtype!r}"
        raise CaptureError(f"{wrong}; use {', '.join(DTYPES)} or None for each")
    if any(dtypes) and gpu and gpu.precision in WHOLE:
        raise CaptureError(
            f"precision '{gpu.precision}' narrows all types, also those of master_weights and "
            "gradient_dtype; give module.bfloat16() without a precision"
        )
    return dtypes


def _traced(step: Step, made: Callable[..., Step], say: Callable[[str], None]) -> Trace:
    """Traces a step; one whose shapes or branches depend on values, with those that `made` keeps."""
    try:
        return trace(step)
    except CaptureError as error:
        if not isinstance(error.__cause__, NEEDS_VALUES):
            raise
        values = KnownValues()
        with_values = made(known_values=values)
        with torch.random.fork_rng(devices=()):
            traced = trace(with_values)
        step.averaged = with_values.averaged
        say(RAN)
        if values.may_be_random:
            say("those shapes and branches may follow from one draw of random numbers")
        return traced
