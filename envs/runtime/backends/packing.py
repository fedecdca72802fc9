"""Tensors as plain data, for pipes between the processes of one runner."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


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
