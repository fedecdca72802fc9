"""Finds the loss in what a module returns."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.utils._pytree import keystr, tree_flatten_with_path

from graphs.capture.structures import leaves_of
from graphs.graph_columns import GraphError

Loss: TypeAlias = str | list[str] | Callable[[Any], Tensor]
"""A key or attribute of what a module returns, several of them, whose sum it is, or a function of that."""
LOSS = "loss"
N_NAMED = 6


class CaptureError(GraphError):
    """A model that cannot be captured; the message names the op or the reason."""


def find_loss(returned: Any, loss: Loss | None = None) -> tuple[Tensor, list[str]]:
    """Finds the loss in what a module returns.

    Without `loss`, it is a scalar under the key or attribute `loss`, else a scalar result or the first
    scalar of a tuple, else the average of the means of all float outputs. The mean of a complex tensor is
    that of its real and imaginary parts.

    Returns:
        The loss, and the names of the outputs that were averaged or added; none if the loss is an output.

    Raises:
        CaptureError: nothing is found, or what is found is no real float scalar.
    """
    if isinstance(loss, str):
        return _scalar(_chosen(returned, loss), loss), []
    if isinstance(loss, list):
        parts = [_scalar(_chosen(returned, key), key) for key in loss]
        return torch.stack(parts).sum(), loss
    if loss is not None:
        return _scalar(loss(returned), loss), []
    named = _part(returned, LOSS)
    if isinstance(named, Tensor) and named.numel() == 1:
        return _scalar(named, LOSS), []
    if isinstance(returned, Tensor) and returned.dim() == 0 and not returned.is_complex():
        return _scalar(returned), []
    if isinstance(returned, tuple | list):
        for item in returned:
            if isinstance(item, Tensor) and item.dim() == 0 and item.is_floating_point():
                return item.clone(), []
    return _average(returned)


def _part(returned: Any, key: str) -> Any:
    """An item or attribute of what a module returns; None if there is none."""
    return returned.get(key) if isinstance(returned, Mapping) else getattr(returned, key, None)


def check_loss(loss: object) -> None:
    """Checks that a loss is none, a key, a list of keys or a function.

    Raises:
        CaptureError: it is something else.
    """
    keys = loss if isinstance(loss, list) and loss else [loss]
    wrong = [key for key in keys if not isinstance(key, str)]
    if wrong and (isinstance(loss, list) or not (loss is None or callable(loss))):
        raise CaptureError(
            f"the loss is {type(wrong[0]).__name__}; give a key, a list of keys or a function of what it "
            "returns; several inputs are one tuple: (module, (x, y))"
        )


def _chosen(returned: Any, key: str) -> Any:
    part = _part(returned, key)
    if part is None:
        keys = f" with {', '.join(map(str, returned))}" if isinstance(returned, Mapping) else ""
        raise CaptureError(
            f"loss='{key}' is no key or attribute of what it returns: {type(returned).__name__}{keys}"
        )
    return part


def _scalar(value: Any, loss: Loss | None = None) -> Tensor:
    name = f"its '{loss}'" if isinstance(loss, str) else "what the loss function returns"
    name = "its result" if loss is None else name
    if not isinstance(value, Tensor) or value.numel() != 1 or not value.is_floating_point():
        is_tensor = isinstance(value, Tensor)
        kind = f"{value.dtype} {list(value.shape)}" if is_tensor else type(value).__name__
        raise CaptureError(f"{name} is {kind}, by which nothing is trained; a loss is one float number")
    return value.reshape(()).clone()  # the traces cannot differentiate an output that is a view


def _average(returned: Any) -> tuple[Tensor, list[str]]:
    leaves_of(returned)
    named = [(keystr(path), leaf) for path, leaf in tree_flatten_with_path(returned)[0]]
    floats = {
        name: leaf
        for name, leaf in named
        if isinstance(leaf, Tensor) and (leaf.is_floating_point() or leaf.is_complex())
    }
    if not floats:
        raise CaptureError(
            f"it returns {type(returned).__name__}, in which there is no float tensor to take the loss of; "
            "return a loss or float outputs"
        )
    means = [
        (torch.view_as_real(tensor.resolve_conj()) if tensor.is_complex() else tensor).mean()
        for tensor in floats.values()
    ]
    return means[0] if len(means) == 1 else torch.stack(means).mean(), [f"output{name}" for name in floats]


def averaged_line(names: list[str], *, summed: bool = False) -> str:
    """Says which outputs a loss is the mean or the sum of."""
    if summed:
        return (
            f"the loss is the sum of {', '.join(names)} for all parameters; place once for each to split them"
        )
    more = f" and {len(names) - N_NAMED} more" if len(names) > N_NAMED else ""
    return f"it returns no loss; the loss is the mean of {', '.join(names[:N_NAMED])}{more}"
