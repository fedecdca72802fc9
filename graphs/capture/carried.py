"""Carries into a trace what it alone would lose: assignments, hooks of gradients, numbers, closures."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping, Sequence
from operator import attrgetter
from types import FrameType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only
from torch.utils.weak import WeakIdKeyDictionary

from graphs.capture.loss import CaptureError
from graphs.capture.module_calls import TORCH, calling_line

_REAL = (Tensor, nn.Parameter)


class Carried(TorchFunctionMode):
    """Carries what a model does beside calling ops into a trace of its copy.

    - A tensor of the real module, which a closure of the user's holds, is that of the copy.
    - `tensor.data = other` changes the tensor in place.
    - `tensor.item()` stays a tensor, so that another step has another number; `torch.tensor([x.max()])` reads
      items by ops, as fake tensors have no memory to read.

    Args:
        model: copy whose tensors are those of the trace.
        paths: path in the copy of each tensor of the real module.
        trains: true if a gradient follows.
        items_are_tensors: true if `tensor.item()` stays a tensor.

    Attributes:
        binds: true if tensors of the real module were met.
        n_items: number of calls of `tensor.item()`.
    """

    def __init__(
        self, model: nn.Module, paths: WeakIdKeyDictionary, *, trains: bool, items_are_tensors: bool
    ) -> None:
        super().__init__()
        self._model, self._paths, self._trains = model, paths, trains
        self._items_are_tensors = items_are_tensors
        self.binds, self.n_items = False, 0

    def __torch_function__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Calls a function of torch's on what is carried."""
        frame = sys._getframe(1)
        args = [self._bound(value, frame) for value in args]
        kwargs = {name: self._bound(value, frame) for name, value in (kwargs or {}).items()}
        if func is Tensor.item and not frame.f_code.co_filename.startswith(TORCH):
            self.n_items += 1
            if self._items_are_tensors:
                return args[0].detach().clone()
        if func in (torch.tensor, torch.as_tensor) and args and not isinstance(args[0], Tensor):
            args = tree_map_only(Tensor, Tensor.item, args)
        if getattr(func, "__self__", None) is Tensor.data:
            if func.__name__ == "__set__":
                return assign(args[0], args[1], f"a tensor {list(args[0].shape)}")
            if torch.compiler.is_exporting():  # which loses where `.data` is from
                return args[0].detach()
        return func(*args, **kwargs)

    def _bound(self, value: Any, frame: FrameType) -> Any:
        if isinstance(value, list | tuple) and any(type(item) in _REAL for item in value):
            return [self._bound(item, frame) for item in value]
        if type(value) not in _REAL:
            return value
        if value in self._paths:
            self.binds = True
            return attrgetter(self._paths[value])(self._model)
        if value.requires_grad and self._trains and torch.is_grad_enabled():
            raise CaptureError(
                f"{calling_line(frame)}: a tensor {list(value.shape)} that requires a gradient is "
                "none of the module's; register it, as a parameter or with its module as a submodule"
            )
        return value


def assign(tensor: Tensor, value: Tensor, what: str) -> None:
    """Gives a tensor another value in place, as an assignment to it would.

    Raises:
        CaptureError: the value has another shape or type.
    """
    if value.shape != tensor.shape or value.dtype != tensor.dtype:
        raise CaptureError(
            f"forward gives {what} the shape {list(value.shape)} and {value.dtype}, which had "
            f"{list(tensor.shape)} and {tensor.dtype}; run the module once before it is placed"
        )
    (tensor.detach() if tensor.requires_grad else tensor).copy_(value)


def carry_assignments(
    state: Mapping[str, Tensor], assigned: Mapping[str, Tensor], trained: Iterable[str]
) -> None:
    """Changes the tensors in place to which `forward` assigned others.

    Args:
        state: each parameter and buffer by path.
        assigned: tensors that `forward` assigned, by path.
        trained: paths of the parameters that require gradients.

    Raises:
        CaptureError: one has another shape or type, or is trained.
    """
    if wrong := sorted(assigned.keys() & set(trained)):
        raise CaptureError(
            f"forward assigns a tensor to parameter '{wrong[0]}', which the optimizer then no longer trains; "
            "change it in place, under torch.no_grad()"
        )
    values = {path: value.detach().clone() for path, value in assigned.items()}
    for path, value in values.items():
        assign(state[path], value, f"'{path}'")


def hooked(tensor: Tensor, hooks: Sequence[Any]) -> Tensor:
    """Returns a view of a parameter whose gradient the hooks change on its way."""
    view = tensor.view_as(tensor)
    for hook in hooks if view.requires_grad else ():
        view.register_hook(hook)  # type: ignore[no-untyped-call]
    return view


def carry_cumulative_averages(model: nn.Module) -> None:
    """Makes batch norms with `momentum=None` count in a tensor; torch reads a Python number."""
    for part in model.modules():
        if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.momentum is None:
            vars(part)["forward"] = MethodType(_batch_norm, part)


def _batch_norm(part: Any, inputs: Tensor) -> Tensor:
    if not (part.training and part.track_running_stats):
        return type(part).forward(part, inputs)
    part._check_input_dim(inputs)
    part.num_batches_tracked.add_(1)
    mean, variance = torch.zeros_like(part.running_mean), torch.zeros_like(part.running_var)
    made = F.batch_norm(inputs, mean, variance, part.weight, part.bias, True, 1.0, part.eps)
    factor = part.num_batches_tracked.to(mean.dtype).reciprocal()
    part.running_mean.mul_(1 - factor).add_(factor * mean)
    part.running_var.mul_(1 - factor).add_(factor * variance)
    return made
