"""Arithmetic of one traced op: the dtype it computes in and the matrix product behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from math import prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_map

from graphs.capture.values import as_value, node_value, op_packet, tensors_of

Gemm = list[int]

aten = torch.ops.aten

_FLOATS = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
}
"""Name of each type of floats, the widest first; a complex number is two floats."""


def tensor_dtype(tensors: Iterable[Tensor]) -> str:
    """Names the widest floats among some tensors; `int` if none are floats, "" if all floats are unknown."""
    types = {tensor.dtype for tensor in tensors}
    if not any(dtype.is_floating_point or dtype.is_complex for dtype in types):
        return "int"
    return next((name for dtype, name in _FLOATS.items() if dtype in types), "")


def op_dtype(node: fx.Node) -> str:
    """Names the dtype that a traced op computes in: of its widest floats, of a product that of its factors.

    By default PyTorch multiplies 32-bit matrices in fp32, and convolves them in TF32.

    Source: "CUDA semantics", TensorFloat-32, in the documentation of PyTorch 2.13.
    """
    operands = [tensor for source in node.all_input_nodes for tensor in tensors_of(node_value(source))]
    if op_packet(node) in _GEMMS:
        dtype = tensor_dtype(operands[:1])  # attention also handles sums in fp32
    else:
        dtype = tensor_dtype([*operands, *tensors_of(node_value(node))])
    return "tf32" if dtype == "fp32" and op_packet(node) in _CONVOLUTIONS else dtype


def op_gemm(node: fx.Node) -> Gemm | None:
    """Extents [batch, m, n, k] of the matrix product behind a traced op; None if there is none.

    A convolution is its implicit product (Chetlur et al. 2014): groups, positions of the output in all
    samples, output channels of a group, kernel elements of a group; a transposed one has the positions of its
    input as m, kernel elements as n and input channels as k. Its backward pass has a product of as many
    operations for each of the gradients of input and weight: the same extents, with the batch times their
    number. Attention: batch * heads, queries, keys, head width.
    """
    extents_of = _GEMMS.get(op_packet(node))
    if extents_of is None:
        return None
    args, kwargs = tree_map(as_value, (node.args, dict(node.kwargs)))
    if op_packet(node) is aten.convolution:
        kwargs["out"] = node_value(node)
    gemm = [int(extent) for extent in extents_of(*args, **kwargs)]
    return gemm if all(gemm) else None


def op_image(node: fx.Node) -> list[int] | None:
    """Height and width of the output of a convolution that Winograd's algorithms compute; None for all else.

    These take tiles of the image, and kernels of 3x3 with a stride of 1, no dilation and one group. A
    backward op counts as its forward op: cuDNN has them for the gradients of input and weight too.

    Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
    """
    packet = op_packet(node)
    if packet not in _CONVOLUTIONS:
        return None
    args = tree_map(as_value, node.args)
    if packet is aten.convolution:
        out, weight, layout = node_value(node), args[1], args[3:9]
    else:
        out, weight, layout = args[0], args[2], args[4:10]
    stride, _, dilation, transposed, _, groups = layout
    plain = all(step == 1 for step in (*stride, *dilation)) and not transposed and groups == 1
    image = [int(side) for side in out.shape[2:]]
    return image if plain and tuple(weight.shape[2:]) == (3, 3) and all(image) and op_gemm(node) else None


def _product(a: Tensor, b: Tensor, *_: object, **__: object) -> Gemm:
    batch = a.shape[0] if a.dim() == 3 else 1
    return [batch, a.shape[-2], b.shape[-1], a.shape[-1]]


def _product_and_sum(_: Tensor, a: Tensor, b: Tensor, *__: object, **___: object) -> Gemm:
    return _product(a, b)


def _matrix_vector(a: Tensor, b: Tensor, *_: object, **__: object) -> Gemm:
    return [1, a.shape[0], 1, a.shape[1]]


def _dot(a: Tensor, b: Tensor, *_: object, **__: object) -> Gemm:
    return [1, 1, 1, a.shape[0]]


def _convolution(
    x: Tensor,
    weight: Tensor,
    bias: object,
    stride: object,
    padding: object,
    dilation: object,
    transposed: bool,
    output_padding: object,
    groups: int,
    *,
    out: Tensor,
) -> Gemm:
    positions = x.shape[0] * prod((x if transposed else out).shape[2:])
    ours, theirs = (weight.shape[0] // groups, prod(weight.shape[1:]))
    return [groups, positions, theirs, ours] if transposed else [groups, positions, ours, theirs]


def _convolution_backward(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: object, *settings: Any
) -> Gemm:
    *layout, output_mask = settings
    groups, *extents = _convolution(x, weight, None, *layout, out=grad)
    return [groups * sum(output_mask[:2]), *extents]


def _attention(query: Tensor, key: Tensor, *_: object, **__: object) -> Gemm:
    return [prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]]


def _attention_backward(_: Tensor, query: Tensor, key: Tensor, *__: object, **___: object) -> Gemm:
    return _attention(query, key)


_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_FUSED_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_GEMMS: dict[Any, Callable[..., Gemm]] = {
    aten.mm: _product,
    aten.bmm: _product,
    aten.addmm: _product_and_sum,
    aten.baddbmm: _product_and_sum,
    aten.mv: _matrix_vector,
    aten.dot: _dot,
    aten.convolution: _convolution,
    aten.convolution_backward: _convolution_backward,
    **{getattr(aten, name): _attention for name in _FUSED_ATTENTION},
    **{getattr(aten, f"{name}_backward"): _attention_backward for name in _FUSED_ATTENTION},
}
