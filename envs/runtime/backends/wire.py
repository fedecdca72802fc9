"""Answers of devices as bytes that are safe to read: tensors as safetensors, all else as JSON."""

from __future__ import annotations

import json
from typing import Any

from safetensors.torch import load, save
from torch import Tensor

from envs.runtime.backends.device_process import StepRecord
from envs.runtime.backends.packing import Packed, pack, unpack
from envs.runtime.device_program import ExecutionError

SHAPE = "shape"
"""Key of the metadata under which the shape of an answer stands."""


def encode(answer: Any) -> bytes:
    """Encodes an answer: step records, packed tensors, mappings, lists, tuples, numbers and None."""
    tensors: dict[str, Tensor] = {}
    shape = json.dumps(_shape_of(answer, tensors))
    content: bytes = save(tensors, metadata={SHAPE: shape})
    return content


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
