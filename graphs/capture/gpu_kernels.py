"""Captures the kernels that torch chooses for tensors on GPUs, where it chooses others on processors."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor
from torch._C import DispatchKey
from torch.backends import cuda

from graphs.capture.loss import CaptureError
from graphs.step_settings import Gpu

BACKENDS: Any = cuda
aten = torch.ops.aten


@contextlib.contextmanager
def gpu_kernels(gpu: Gpu | None) -> Iterator[dict[str, None]]:
    """Lets torch choose for fake CPU tensors the kernels of GPUs; None = those of the processor.

    GPUs fuse RMS norms, and `flex_attention` in training. Attention that a GPU fuses is the CPU's fused op if
    that takes it too, else `aten._scaled_dot_product_efficient_attention`, which stands for flash as well.

    Yields:
        A line for each sort of attention that a GPU does not fuse.
    """
    unfused: dict[str, None] = {}
    if gpu is None:
        yield unfused
        return
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    library.impl("scaled_dot_product_attention", partial(_attention, gpu, unfused), "AutogradCPU")
    norm = aten._fused_rms_norm.default
    library.impl("_fused_rms_norm", partial(norm._op_dk, DispatchKey.Autograd), "AutogradCPU")
    whole = {DispatchKey.CompositeImplicitAutograd: lambda *_: NotImplemented}
    check = "torch.nn.attention.flex_attention._validate_device"
    try:
        with patch.dict(norm.py_kernels, whole), patch(check, lambda *_: None, create=True):
            yield unfused
    finally:
        library._destroy()


def _attention(
    gpu: Gpu,
    unfused: dict[str, None],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    **named: Any,
) -> Any:
    """Computes `F.scaled_dot_product_attention` by the kernel that a GPU chooses."""
    given, settings = (query, key, value), (dropout_p, is_causal)
    fused = _is_fused(gpu, given, mask, is_causal, named.get("enable_gqa", False))
    on_cpu = dropout_p == 0 and query.shape[-1] == value.shape[-1] and BACKENDS.flash_sdp_enabled()
    on_cpu &= mask is None or (mask.dim() != 3 and not mask.requires_grad)
    if (fused and on_cpu) or (mask is not None and is_causal):
        return aten.scaled_dot_product_attention.default.decompose(*given, mask, *settings, **named)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype))
    if not fused:
        case = f"{[list(tensor.shape) for tensor in given]} in {gpu.precision or query.dtype}"
        line = (
            f"no fused kernel of compute capability {gpu.capability:g} takes attention of {case}"
            f"{' with a mask' * (mask is not None)}, by torch's sdp_utils.cpp"
        )
        if not BACKENDS.math_sdp_enabled():
            raise CaptureError(f"{line}, and `sdpa_kernel` allows no other")
        unfused[f"{line}; it keeps its scores"] = None
        return aten._scaled_dot_product_attention_math(*given, mask, *settings, None, **named)[0]
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in given)
    efficient = aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, trains, *settings, scale=named.get("scale"))[0]


def _is_fused(
    gpu: Gpu, given: Sequence[Tensor], mask: Tensor | None, is_causal: bool, grouped: bool
) -> bool:
    """Says whether flash or the memory-efficient kernel takes an attention.

    cuDNN's is left out: it adds only grouped heads with a mask, in 16 bits on Hopper and Blackwell.

    Source: `can_use_{flash,mem_efficient}_attention` in `aten/src/ATen/native/transformers/cuda/
    sdp_utils.cpp` of PyTorch 2.13.
    """
    query, _, value = given
    low = (gpu.precision or "").removeprefix("amp-") if query.dtype is torch.float32 else ""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "int4": torch.bfloat16}.get(low, query.dtype)
    half, ampere = dtype in (torch.float16, torch.bfloat16), gpu.capability >= 8
    if gpu.capability < 5 or not (dtype in (torch.float32, torch.float16) or (half and ampere)):
        return False
    if any(tensor.dim() != 4 or tensor.shape[0] != query.shape[0] for tensor in given):
        return False
    if any(tensor.stride(-1) != 1 for tensor in (*given, mask) if tensor is not None):
        return False
    same_heads = len({tensor.shape[1] for tensor in given}) == 1
    widths = query.shape[-1], value.shape[-1]
    square = not is_causal or query.shape[2] == given[1].shape[2]
    flash = half and ampere and mask is None and square and widths[0] == widths[1] <= 256
    step = 8 if half and gpu.capability >= 7 else 4 if ampere else 1
    efficient = same_heads and all(width % step == 0 for width in widths)
    return (flash and (same_heads or grouped) and BACKENDS.flash_sdp_enabled()) or (
        efficient and BACKENDS.mem_efficient_sdp_enabled()
    )
