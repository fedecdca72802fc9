"""Captures the kernels that torch chooses for tensors on GPUs, where it chooses others on processors."""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch._C import DispatchKey

from graphs.capture.loss import CaptureError
from graphs.step_settings import Gpu

aten = torch.ops.aten
allows: Any = torch.backends.cuda


@contextlib.contextmanager
def gpu_kernels(gpu: Gpu) -> Iterator[dict[str, None]]:
    """Makes torch choose for fake CPU tensors the kernels of GPUs.

    GPUs fuse RMS norms, and `flex_attention` in training. Attention that a GPU fuses is the CPU's fused op if
    that takes it too, else `aten._scaled_dot_product_efficient_attention`, which stands for flash as well.
    Yields a line for each sort of attention that a GPU does not fuse.
    """
    unfused: dict[str, None] = {}
    library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
    sdpa, norm = aten.scaled_dot_product_attention.default, aten._fused_rms_norm.default
    library.impl("scaled_dot_product_attention", partial(_attention, gpu, unfused), "AutogradCPU")
    library.impl("_fused_rms_norm", partial(norm._op_dk, DispatchKey.Autograd), "AutogradCPU")
    check = "torch.nn.attention.flex_attention._validate_device"
    with contextlib.ExitStack() as stack:
        stack.callback(library._destroy)
        for op in (sdpa, norm):  # torch keeps its choice of a kernel
            stack.enter_context(patch.object(op, "_dispatch_cache", {}))
        whole = {DispatchKey.CompositeImplicitAutograd: lambda *_: NotImplemented}
        stack.enter_context(patch.dict(norm.py_kernels, whole))
        stack.enter_context(patch(check, lambda *_: None, create=True))
        yield unfused


def _attention(gpu: Gpu, unfused: dict[str, None], *operands: Any, **named: Any) -> Any:
    """Computes `F.scaled_dot_product_attention` by the kernel that a GPU chooses."""
    all_given: Any = (*operands, *(None, 0.0, False)[len(operands) - 3 :])
    query, key, value, mask, dropout_p, is_causal = all_given
    heads, settings = (query, key, value), (dropout_p, is_causal)
    fused = _is_fused(gpu, heads, mask, is_causal, named.get("enable_gqa", False))
    on_cpu = fused and dropout_p == 0 and query.shape[-1] == value.shape[-1] and allows.flash_sdp_enabled()
    if mask is not None and (is_causal or mask.dim() == 3 or mask.requires_grad):
        on_cpu = is_causal  # which torch refuses
    if on_cpu:
        return aten.scaled_dot_product_attention.default.decompose(*heads, mask, *settings, **named)
    if mask is not None and mask.dtype is torch.bool:
        mask = torch.where(mask, 0.0, torch.scalar_tensor(-math.inf, dtype=query.dtype))
    if not fused:
        masked = " with a mask" if mask is not None else ""
        shapes, dtype = [list(tensor.shape) for tensor in heads], gpu.precision or query.dtype
        case = f"attention of {shapes} in {dtype}{masked} on compute capability {gpu.capability:g}"
        if not allows.math_sdp_enabled():
            raise CaptureError(f"{case} has no kernel that `sdpa_kernel` allows (torch's sdp_utils.cpp)")
        unfused[f"{case} is not fused and keeps its scores (torch's sdp_utils.cpp)"] = None
        return aten._scaled_dot_product_attention_math(*heads, mask, *settings, None, **named)[0]
    if (groups := query.shape[1] // key.shape[1]) > 1:
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
    mask = None if mask is None else mask.expand(*query.shape[:-1], key.shape[-2])
    trains = torch.is_grad_enabled() and any(tensor.requires_grad for tensor in heads)
    scale, efficient = named.get("scale"), aten._scaled_dot_product_efficient_attention
    return efficient(query, key, value, mask, trains, *settings, scale=scale)[0]


def _is_fused(gpu: Gpu, heads: Sequence[Tensor], mask: Tensor | None, is_causal: bool, grouped: bool) -> bool:
    """Says whether flash or the memory-efficient kernel takes an attention.

    cuDNN's is left out: it adds only grouped heads with a mask, in 16 bits on Hopper and Blackwell.

    Source: `can_use_{flash,mem_efficient}_attention` in `aten/src/ATen/native/transformers/cuda/
    sdp_utils.cpp` of PyTorch 2.13.
    """
    query, key, value = heads
    low = (gpu.precision or "").removeprefix("amp-") if query.dtype is torch.float32 else ""
    dtype = {"fp16": torch.float16, "bf16": torch.bfloat16, "int4": torch.bfloat16}.get(low, query.dtype)
    half, ampere = dtype in (torch.float16, torch.bfloat16), gpu.capability >= 8
    same_heads, widths = query.shape[1] == key.shape[1] == value.shape[1], {query.shape[-1], value.shape[-1]}
    step = 8 if half and gpu.capability >= 7 else 4 if ampere else 1
    flash = half and ampere and mask is None and len(widths) == 1 and max(widths) <= 256
    flash &= (same_heads or grouped) and (not is_causal or query.shape[-2] == key.shape[-2])
    efficient = same_heads and all(width % step == 0 for width in widths)
    return (
        gpu.capability >= 5
        and (dtype in (torch.float32, torch.float16) or (half and ampere))
        and all(tensor.dim() == 4 and tensor.shape[0] == query.shape[0] for tensor in heads)
        and all(tensor.stride(-1) == 1 for tensor in (*heads, mask) if tensor is not None)
        and ((flash and allows.flash_sdp_enabled()) or (efficient and allows.mem_efficient_sdp_enabled()))
    )


@contextlib.contextmanager
def noticed_fast_paths() -> Iterator[dict[str, None]]:
    """Gives the classes of PyTorch's modules that eager inference runs as one op, filled while they run."""
    classes, inside = dict[str, None](), set[Any]()
    enabled = torch.backends.mha.get_fastpath_enabled

    def ask() -> bool:  # which all of them do when they are called
        operands = sys._getframe(1).f_locals
        layer: Any = operands.get("self")
        if enabled() and layer not in inside and _is_one_op(layer, operands):
            classes[f"nn.{type(layer).__name__}"] = None
            inside.update(layer.modules())
        return enabled()

    with patch.object(torch.backends.mha, "get_fastpath_enabled", ask):
        yield classes


def _is_one_op(layer: Any, operands: Mapping[str, Any]) -> bool:
    """Says whether eager inference runs a layer as one op; a capture has one hook of each sort on a module.

    Source: `forward` of `MultiheadAttention` and `TransformerEncoderLayer` in PyTorch 2.13.
    """
    is_layer = isinstance(layer, nn.TransformerEncoderLayer)
    part = layer.self_attn if is_layer else layer
    if not isinstance(part, nn.MultiheadAttention) or layer.training or torch.is_autocast_enabled():
        return False
    plain = part.batch_first and part.in_proj_bias is not None and part._qkv_same_embed_dim
    plain &= part.num_heads % 2 == 0 and operands["src" if is_layer else "query"].dim() == 3
    if is_layer:
        hooks = [hook for sub in layer.modules() for hook in (sub._forward_hooks, sub._forward_pre_hooks)]
        plain &= layer.norm1.eps == layer.norm2.eps and max(map(len, hooks)) <= 1
        return bool(plain and layer.activation_relu_or_gelu)
    plain &= part.bias_k is None and not part.add_zero_attn and not operands["why_not_fast_path"]
    return plain and operands["query"] is operands["key"] is operands["value"]
