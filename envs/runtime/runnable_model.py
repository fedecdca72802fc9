"""A model of the user's that can be run: captured, and with values where it came without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

from graphs.capture.captured_step import CapturedStep
from graphs.capture.user_model import capture_model, make_model

STANDARD_DEVIATION = 0.02


@dataclass(frozen=True, eq=False)
class RunnableModel:
    """A captured step with the module and the inputs to run it on."""

    captured: CapturedStep
    module: nn.Module
    inputs: Any


def load_runnable(
    spec: str, *, split: int | None = None, batch_dim: int = 0, names: Sequence[str] = (), **settings: Any
) -> RunnableModel:
    """Makes and captures the model of a function of the user's.

    Args:
        split, batch_dim, names: arguments of `make_model`.
        settings: arguments of `capture_model`.

    Raises:
        SourceError: the function cannot be found, fails, or returns something else.
        GraphError: the model cannot be captured.
    """
    made = make_model(spec, split=split, batch_dim=batch_dim, names=names)
    captured = capture_model(spec, made, **settings)
    return RunnableModel(captured, *with_values(made.module, made.inputs))


def with_values(module: nn.Module, inputs: Any) -> tuple[nn.Module, Any]:
    """Gives values to the tensors that are on the meta device: steps can be timed with any.

    A module draws its parameters as it does when it is made; those that it does not know how to draw are
    normal with a standard deviation of 0.02. Inputs and other buffers are zeros.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.is_meta for tensor in tensors):
        torch.manual_seed(0)
        module = module.to_empty(device="cpu")
        with torch.no_grad():
            for buffer in module.buffers():
                buffer.zero_()
            for parameter in module.parameters():
                nn.init.normal_(parameter, std=STANDARD_DEVIATION) if parameter.is_floating_point() else None
            for part in module.modules():
                if callable(reset := getattr(part, "reset_parameters", None)):
                    reset()
    return module, tree_map_only(
        Tensor, lambda item: torch.zeros(item.shape, dtype=item.dtype) if item.is_meta else item, inputs
    )
