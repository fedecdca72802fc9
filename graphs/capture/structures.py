"""Nested inputs and outputs of modules, dataclasses among them, as torch's trees."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from torch import Tensor
from torch.utils import _pytree as pytree

from graphs.system.errors import InputError


def leaves_of(value: Any) -> list[Any]:
    """Returns what is nested in a value; dataclasses in it are trees to torch from then on."""
    leaves = pytree.tree_leaves(value)
    unknown = {type(leaf) for leaf in leaves if is_dataclass(leaf) and not isinstance(leaf, type)}
    for kind in unknown:
        _register(kind)
    return leaves_of(value) if unknown else leaves


def as_arguments(inputs: Any) -> Any:
    """Returns a module's arguments as a tuple or dict, where they may be one tensor or dataclass."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)  # those of a tokenizer are no dict, and no tree to torch
    leaves_of(inputs)
    is_one = isinstance(inputs, Tensor) or (is_dataclass(inputs) and not isinstance(inputs, dict))
    return (inputs,) if is_one else tuple(inputs) if isinstance(inputs, list) else inputs


def batch_size(inputs: Any, dim: int = 0) -> int:
    """Returns the size of the first tensor with a dimension in this dimension.

    Raises:
        InputError: there is none.
    """
    leaves = pytree.tree_leaves(as_arguments(inputs))
    sizes = [leaf.shape[dim] for leaf in leaves if isinstance(leaf, Tensor) and leaf.dim() > dim >= 0]
    if not sizes:
        raise InputError(f"no input has a dimension {dim} that could be split; name that of the batch")
    return sizes[0]


def split_batch(inputs: Any, count: int, dim: int = 0) -> list[Any]:
    """Cuts a module's arguments into microbatches.

    The size of the batch is that of `batch_size`. Every tensor of that size in it is
    cut; all else is the same in all microbatches.

    Args:
        inputs: one tensor, a sequence, or a mapping by keyword.
        count: of microbatches, at least 1.
        dim: to cut along, from 0.

    Raises:
        InputError: a number out of range, no tensor with the dimension, or a batch that cannot be split into
            equal parts.
    """
    if count < 1 or dim < 0:
        raise InputError(
            f"{count} microbatches along dimension {dim}; give at least 1, and a dimension from 0"
        )
    leaves, spec = pytree.tree_flatten(as_arguments(inputs))
    size = batch_size(inputs, dim)
    if size % count or not size:
        raise InputError(
            f"a batch of {size} in dimension {dim} cannot be split into {count} equal microbatches; "
            f"give a number that divides {size}"
        )
    parts = [
        leaf.chunk(count, dim)
        if isinstance(leaf, Tensor) and leaf.dim() > dim and leaf.shape[dim] == size
        else [leaf] * count
        for leaf in leaves
    ]
    return [pytree.tree_unflatten(part, spec) for part in zip(*parts, strict=True)]


def _register(kind: type) -> None:
    """Makes a dataclass a tree of its fields; it is rebuilt without `__init__`, whose checks need values."""
    names = [field.name for field in fields(kind)]

    def flatten(value: Any) -> tuple[list[Any], list[str]]:
        present = [name for name in names if hasattr(value, name)]
        return [getattr(value, name) for name in present], present

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], list[str]]:
        leaves, present = flatten(value)
        return [(pytree.GetAttrKey(name), leaf) for name, leaf in zip(present, leaves, strict=True)], present

    def unflatten(leaves: Any, present: list[str]) -> Any:
        value: Any = object.__new__(kind)
        for name, leaf in zip(present, leaves, strict=True):
            object.__setattr__(value, name, leaf)
        return value

    pytree.register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)
