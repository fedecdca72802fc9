"""Nested inputs and outputs of modules, dataclasses and other objects among them, as torch's trees."""

from __future__ import annotations

import copy
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from torch import Tensor, int32, int64, nn
from torch.utils import _pytree as pytree

from graphs.system.errors import InputError


def leaves_of(value: Any) -> list[Any]:
    """Returns what is nested in a value; objects in it that hold tensors are trees to torch from then on."""
    leaves = pytree.tree_leaves(value)
    unknown = {type(leaf) for leaf in leaves if _is_tree(leaf)}
    for kind in unknown:
        _register(kind)
    return leaves_of(value) if unknown else leaves


def as_arguments(inputs: Any) -> Any:
    """Returns a module's arguments as a tuple or dict, where they may be one tensor or object."""
    if isinstance(inputs, Mapping):
        inputs = dict(inputs)  # those of a tokenizer are no dict, and no tree to torch
    leaves_of(inputs)
    return (
        tuple(inputs)
        if isinstance(inputs, list)
        else inputs
        if isinstance(inputs, tuple | dict)
        else (inputs,)
    )


def batch_size(inputs: Any, dim: int = 0, names: Sequence[str | int] = (), count: int = 1) -> int:
    """Returns the size of the batch among a module's arguments.

    Args:
        dim: its dimension, from 0.
        names: arguments that have it, by keyword or position. By default it is the most common size but
            1; of equally common ones that which `count` divides, of the tensor with the most dimensions.

    Raises:
        InputError: no tensor has it, a name is unknown, or the named tensors have several sizes.
    """
    leaves, chosen = _named_leaves(inputs), set(map(str, names))
    if unknown := sorted(chosen - {name for name, _ in leaves}):
        inputs_are = f"the inputs are {', '.join(dict.fromkeys(name for name, _ in leaves))}"
        raise InputError(f"no input is '{unknown[0]}'; {inputs_are}")
    wanted = [leaf for name, leaf in leaves if isinstance(leaf, Tensor) and (not names or name in chosen)]
    shapes = [leaf.shape for leaf in wanted if leaf.dim() > dim >= 0]
    if not shapes:
        raise InputError(f"no input has a dimension {dim} that could be split; name that of the batch")
    often = Counter(shape[dim] for shape in shapes)
    if names and len(often) > 1:
        sizes = " and ".join(map(str, often))
        raise InputError(f"the named inputs have sizes {sizes} in dimension {dim}; name those of the batch")
    ranks = [
        (size > 1, often[size], size % count == 0, len(shape)) for shape in shapes for size in [shape[dim]]
    ]
    return int(shapes[ranks.index(max(ranks))][dim])


def split_batch(
    inputs: Any,
    count: int,
    dim: int = 0,
    names: Sequence[str | int] = (),
    *,
    notify: Callable[[str], None] | None = None,
) -> list[Any]:
    """Cuts a module's arguments into microbatches.

    Every tensor of the size of the batch in its dimension is cut, or those that are named, and so are offsets
    into the batch; all else is the same in all microbatches.

    Args:
        inputs: one tensor, a sequence, or a mapping by keyword.
        count: count of microbatches, at least 1.
        dim, names: arguments of `batch_size`.
        notify: function of a line that names the tensors which are not cut.

    Raises:
        InputError: a number out of range, or a batch that is none or cannot be split into equal parts.
    """
    if count < 1 or dim < 0:
        raise InputError(
            f"{count} microbatches along dimension {dim}; give at least 1, and a dimension from 0"
        )
    _, spec = pytree.tree_flatten(as_arguments(inputs))
    size = batch_size(inputs, dim, names, count)
    if size % count or not size:
        raise InputError(
            f"a batch of {size} in dimension {dim} cannot be split into {count} equal microbatches; "
            f"give a number that divides {size}, or name the inputs to split"
        )
    parts, whole = [], []
    for name, leaf in _named_leaves(inputs):
        cut = split_offsets(leaf, size, count)
        if isinstance(leaf, Tensor) and leaf.dim() and not cut:
            if leaf.dim() > dim and leaf.shape[dim] == size and (not names or name in map(str, names)):
                cut = list(leaf.chunk(count, dim))
            else:
                whole.append(f"'{name}' {list(leaf.shape)}")
        parts.append(cut or [leaf] * count)
    if notify and whole and count > 1:
        line = f"the batch is {size} in dimension {dim}; every microbatch gets all of {', '.join(whole)}"
        notify(f"{line}; if that is wrong, name the inputs to split")
    return [pytree.tree_unflatten(part, spec) for part in zip(*parts, strict=True)]


def split_offsets(leaf: Any, size: int, count: int) -> list[Tensor]:
    """Cuts offsets into a batch, as of packed documents, into as many from 0 for each microbatch.

    Returns:
        Nothing if the leaf holds no offsets, or none where each microbatch begins and ends.
    """
    if not isinstance(leaf, Tensor) or leaf.is_meta or leaf.dim() != 1 or leaf.dtype not in (int32, int64):
        return []
    length, rest = divmod(len(leaf) - 1, count)
    if length < 1 or rest or leaf[::length].tolist() != list(range(0, size + 1, max(size // count, 1))):
        return []
    parts = [leaf[first : first + length + 1] - leaf[first] for first in range(0, len(leaf) - 1, length)]
    return [] if (leaf.diff() < 0).any() else parts


def _named_leaves(inputs: Any) -> list[tuple[str, Any]]:
    """Returns the leaves of arguments with the keyword or position of their argument."""
    leaves, _ = pytree.tree_flatten_with_path(as_arguments(inputs))
    return [(str(getattr(path[0], "key", getattr(path[0], "idx", ""))), leaf) for path, leaf in leaves]


@dataclass(frozen=True)
class _Frame:
    """An object without the parts that are leaves, and their names."""

    names: tuple[str, ...]
    rest: Any = field(compare=False)


def _register(kind: type) -> None:
    """Makes a class a tree of its parts; it is rebuilt without `__init__`, whose checks need values."""

    def flatten(value: Any) -> tuple[list[Any], _Frame]:
        parts, rest = _parts_of(value), copy.copy(value)
        for name in parts:
            _set_part(rest, name, None)
        return list(parts.values()), _Frame(tuple(parts), rest)

    def flatten_with_keys(value: Any) -> tuple[list[tuple[Any, Any]], _Frame]:
        leaves, frame = flatten(value)
        return list(zip(map(pytree.GetAttrKey, frame.names), leaves, strict=True)), frame

    def unflatten(leaves: Any, frame: _Frame) -> Any:
        value = copy.copy(frame.rest)
        for name, leaf in zip(frame.names, leaves, strict=True):
            _set_part(value, name, leaf)
        return value

    pytree.register_pytree_node(kind, flatten, unflatten, flatten_with_keys_fn=flatten_with_keys)


def _parts_of(value: Any) -> dict[str, Any]:
    """Returns what an object holds: fields, items, the attributes that it names as keys, or all it has."""
    if is_dataclass(value):
        names = [part.name for part in fields(value)]
    elif isinstance(value, Mapping):
        return dict(value)
    else:
        has_keys = callable(getattr(value, "keys", None))
        names = list(value.keys() if has_keys else _attributes_of(value))
    return {name: getattr(value, name) for name in names if isinstance(name, str) and hasattr(value, name)}


def _set_part(value: Any, name: str, part: Any) -> None:
    if isinstance(value, Mapping):
        value[name] = part  # type: ignore[index]
    elif is_dataclass(value):
        object.__setattr__(value, name, part)  # it may be frozen
    else:
        setattr(value, name, part)


def _is_tree(leaf: Any) -> bool:
    """Says whether a leaf is a dataclass, or another object that holds tensors."""
    if isinstance(leaf, type | Tensor | nn.Module):
        return False
    return is_dataclass(leaf) or holds_tensors(list(_parts_of(leaf).values()))


def holds_tensors(value: Any, depth: int = 4) -> bool:
    """Says whether there is a tensor in a value, or in what its attributes hold."""
    leaves = pytree.tree_leaves(value)
    if any(isinstance(leaf, Tensor) for leaf in leaves):
        return True
    objects = [_attributes_of(leaf) for leaf in leaves if not isinstance(leaf, type | nn.Module)]
    return depth > 0 and any(holds_tensors(list(part.values()), depth - 1) for part in objects)


def _attributes_of(value: Any) -> dict[str, Any]:
    slots = [name for name in getattr(type(value), "__slots__", ()) if hasattr(value, name)]
    return {name: getattr(value, name) for name in slots} | getattr(value, "__dict__", {})
