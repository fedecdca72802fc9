"""Data that devices are given and answer: plain for pipes, or as bytes that are safe to read.

Bytes hold tensors as safetensors, all else as JSON.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from safetensors.torch import load, save
from torch import Tensor

from envs.runtime.device_program import ExecutionError

SHAPE = "shape"
"""Key of the metadata under which the shape of an answer stands."""


@dataclass(frozen=True)
class Packed:
    """A dense tensor as bytes; `stride` is in elements."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    content: bytes


def pack(tensor: Tensor) -> Packed:
    """Copies a tensor's values into bytes; a sparse tensor becomes dense."""
    tensor = (tensor.to_dense() if tensor.is_sparse else tensor).detach().cpu()
    raw = tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes()
    return Packed(tuple(tensor.shape), tuple(tensor.stride()), tensor.dtype, raw)


def unpack(packed: Packed) -> Tensor:
    """Makes a tensor of its own memory, with the layout of the packed one."""
    if not packed.content:
        return torch.empty(packed.shape, dtype=packed.dtype)
    values = torch.frombuffer(bytearray(packed.content), dtype=packed.dtype).view(packed.shape)
    return torch.empty_strided(packed.shape, packed.stride, dtype=packed.dtype).copy_(values)


def pack_all(nested: Any) -> Any:
    """Packs the tensors in a mapping, of any nesting; other values are unchanged."""
    if isinstance(nested, Mapping):
        return {key: pack_all(value) for key, value in nested.items()}
    return pack(nested) if isinstance(nested, Tensor) else nested


def unpack_all(nested: Any) -> Any:
    """Undoes `pack_all`."""
    if isinstance(nested, Mapping):
        return {key: unpack_all(value) for key, value in nested.items()}
    return unpack(nested) if isinstance(nested, Packed) else nested


@dataclass(frozen=True)
class StepRecord:
    """The report of one device on one step.

    Attributes:
        outputs: outputs of the step, by index.
        start_s, end_s: on the clock that all processes of a machine share.
        spans: start and end of each instruction and of the updates, if they were asked for.
    """

    outputs: dict[int, Packed]
    start_s: float
    end_s: float
    spans: tuple[tuple[float, float], ...] = ()


def encode(answer: Any) -> bytes:
    """Encodes an answer: step records, packed tensors, mappings, lists, tuples, numbers and None."""
    tensors: dict[str, Tensor] = {}
    shape = json.dumps(_shape_of(answer, tensors))
    return save(tensors, metadata={SHAPE: shape})


def decode(content: bytes) -> Any:
    """Decodes an answer.

    Raises:
        ExecutionError: it is no answer.
    """
    try:
        size = int.from_bytes(content[:8], "little")
        header = json.loads(content[8 : 8 + size])
        return _value_of(json.loads(header["__metadata__"][SHAPE]), load(content))
    except (KeyError, ValueError, TypeError) as error:
        raise ExecutionError(f"another device sent what is no answer: {error}") from None


def _shape_of(value: Any, tensors: dict[str, Tensor]) -> Any:
    if isinstance(value, Packed):
        tensors[str(len(tensors))] = unpack(value).contiguous()
        return {"tensor": str(len(tensors) - 1)}
    if isinstance(value, StepRecord):
        parts = [value.outputs, value.start_s, value.end_s, value.spans]
        return {"record": [_shape_of(part, tensors) for part in parts]}
    if isinstance(value, dict):
        return {"items": [[key, _shape_of(item, tensors)] for key, item in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_shape_of(item, tensors) for item in value]}
    return value


def _value_of(shape: Any, tensors: dict[str, Tensor]) -> Any:
    if not isinstance(shape, dict):
        return shape
    ((kind, content),) = shape.items()
    if kind == "tensor":
        return pack(tensors[content])
    if kind == "items":
        return {key: _value_of(item, tensors) for key, item in content}
    values = [_value_of(item, tensors) for item in content]
    return StepRecord(*values) if kind == "record" else values if kind == "list" else tuple(values)
