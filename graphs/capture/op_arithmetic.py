"""Arithmetic of one traced op: the dtype it computes in and the matrix product behind it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from math import prod
from typing import Any

import torch
from torch import Tensor, fx

from graphs.capture.values import is_sparse, is_torch, node_value, op_arguments, op_packet, tensors_of

Gemm = list[int]

aten = torch.ops.aten

_FLOATS = {
    torch.float64: "fp64",
    torch.complex128: "fp64",
    torch.float32: "fp32",
    torch.complex64: "fp32",
    torch.bfloat16: "bf16",
    torch.float16: "fp16",
    torch.complex32: "fp16",
}
"""Name of each type of floats of two bytes or more, the widest first; a complex number is two floats."""


def tensor_dtype(tensors: Iterable[Tensor]) -> str:
    """Names the widest floats among some tensors; `int` if none are floats. Floats of a byte are `fp8`."""
    types = {tensor.dtype for tensor in tensors}
    if not any(dtype.is_floating_point or dtype.is_complex for dtype in types):
        return "int"
    return next((name for dtype, name in _FLOATS.items() if dtype in types), "fp8")


def op_dtype(node: fx.Node) -> str:
    """Names the dtype that a traced op computes in: of its widest floats, of a product its left factor's.

    An op that is not PyTorch's own has the dtype of its largest operand of floats: scales may be fp32. By
    default PyTorch multiplies 32-bit matrices in fp32, and convolves them in TF32.

    Source: "CUDA semantics", TensorFloat-32, in the documentation of PyTorch 2.13.
    """
    packet, name = op_packet(node), str(op_packet(node))
    operands = [tensor for source in node.all_input_nodes for tensor in tensors_of(node_value(source))]
    floats = [tensor for tensor in operands if tensor.is_floating_point()]
    if name in _GEMMS:
        factor = op_arguments(node)[0][LEFT_FACTOR.get(name, 0)]  # attention also handles sums in fp32
        is_bytes = name in LEFT_FACTOR and factor.dtype in (torch.int8, torch.uint8)
        dtype = "int8" if is_bytes else tensor_dtype([factor])
    elif floats and not is_torch(packet):
        dtype = tensor_dtype([max(floats, key=Tensor.numel)])
    else:
        dtype = tensor_dtype([*operands, *tensors_of(node_value(node))])
    return "tf32" if dtype == "fp32" and packet in _CONVOLUTIONS else dtype


def op_gemm(node: fx.Node) -> Gemm | None:
    """Extents [batch, m, n, k] of the matrix product behind a traced op; None if there is none.

    A convolution is its implicit product (Chetlur et al. 2014): groups, positions of the output in all
    samples, output channels of a group, kernel elements of a group; a transposed one has the positions of its
    input as m, kernel elements as n and input channels as k. Its backward pass has a product of as many
    operations for each of the gradients of input and weight: the same extents, with the batch times their
    number. Attention: batch * heads, queries, keys, head width. Products of sparse tensors have none.
    """
    if str(op_packet(node)) not in _GEMMS or any(map(is_sparse, (node, *node.all_input_nodes))):
        return None
    gemm = dense_extents(node)
    return gemm if all(gemm) else None


def dense_extents(node: fx.Node) -> Gemm:
    """Extents of a product in `LEFT_FACTOR`, or of another with a `gemm`, as if its operands were dense."""
    args, kwargs = op_arguments(node)
    extents = _GEMMS[str(op_packet(node))](*args, **kwargs | {"out": node_value(node)})
    return [int(extent) for extent in extents]


def op_image(node: fx.Node) -> list[int] | None:
    """Height and width of the output of a convolution that Winograd's algorithms compute; None for all else.

    These take tiles of the image, and kernels of 3x3 with a stride of 1, no dilation and one group. A
    backward op counts as its forward op: cuDNN has them for the gradients of input and weight too.

    Source: Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks", CVPR 2016.
    """
    packet = op_packet(node)
    if packet not in _CONVOLUTIONS:
        return None
    args, _ = op_arguments(node)
    if packet is aten.convolution:
        out, weight, layout = node_value(node), args[1], args[3:9]
    else:
        out, weight, layout = args[0], args[2], args[4:10]
    stride, _, dilation, transposed, _, groups = layout
    plain = all(step == 1 for step in (*stride, *dilation)) and not transposed and groups == 1
    image = [int(side) for side in out.shape[2:]]
    return image if plain and tuple(weight.shape[2:]) == (3, 3) and all(image) and op_gemm(node) else None


def _product(*operands: Any, left: int = 0, out: Tensor, **_: object) -> Gemm:
    """Reads the extents off the left factor and the result, as the right factor may be packed.

    Products that share a factor, as it is expanded or has no batch, are one product.
    """
    factor, *others = operands[left : left + 2]
    batch, inner = (factor.shape[0] if factor.dim() == 3 else 1), factor.shape[-1]
    rows, columns = factor.numel() // max(1, batch * inner), out.shape[-1] if out.dim() > 1 else 1
    pairs = 2 if factor.dtype is torch.float4_e2m1fn_x2 else 1
    if batch > 1 and any(map(_is_shared, others)):
        batch, rows = 1, batch * rows
    elif batch > 1 and others and _is_shared(factor):
        batch, columns = 1, batch * columns
    return [batch, rows, columns, pairs * inner]


def _is_shared(factor: Tensor) -> bool:
    """Says whether all products of a batch have the same matrix for a factor."""
    return factor.dim() < 3 or (factor.layout is torch.strided and not factor.stride(0))


def _grouped_product(left: Tensor, *_: object, out: Tensor, **__: object) -> Gemm:
    """A row of the left factor meets the columns of its group alone; groups may share the inner extent."""
    gemm = _product(left, out=out)
    return [1, *gemm[1:]] if out.dim() == 2 else gemm


def _convolution(x: Tensor, weight: Tensor, bias: object, *layout: Any, out: Tensor) -> Gemm:
    *_, transposed, _, groups = layout
    positions = x.shape[0] * prod((x if transposed else out).shape[2:])
    ours, theirs = (weight.shape[0] // groups, prod(weight.shape[1:]))
    return [groups, positions, theirs, ours] if transposed else [groups, positions, ours, theirs]


def convolution_backward_extents(
    grad: Tensor, x: Tensor, weight: Tensor, bias_sizes: object, *settings: Any, **_: object
) -> Gemm:
    """Extents of the products for the gradients of input and weight, as `op_gemm` gives them."""
    *layout, output_mask = settings
    groups, *extents = _convolution(x, weight, None, *layout, out=grad)
    return [groups * sum(output_mask[:2]), *extents]


def _attention(query: Tensor, key: Tensor, *_: object, **__: object) -> Gemm:
    return [prod(query.shape[:-2]), query.shape[-2], key.shape[-2], query.shape[-1]]


_CONVOLUTIONS = (aten.convolution, aten.convolution_backward)
_FUSED_ATTENTION = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
)
_PRODUCTS = {
    0: "mm bmm mv dot vdot linear matmul mkldnn_linear hspmm _sparse_mm _sparse_sparse_matmul _cdist_forward "
    "_euclidean_dist _int_mm _scaled_mm _scaled_mm_v2 _grouped_mm _scaled_grouped_mm _scaled_grouped_mm_v2 "
    "_weight_int8pack_mm _weight_int4pack_mm _weight_int4pack_mm_for_cpu _mixed_dtypes_linear "
    "_weight_int4pack_mm_with_scales_and_zeros _dyn_quant_matmul_4bit _sparse_semi_structured_mm "
    "_sparse_semi_structured_linear _sparse_mm_reduce_impl _cslt_sparse_mm",
    1: "addmm baddbmm addbmm addmv _addmm_activation _sparse_addmm sspaddmm sparse_sampled_addmm "
    "_sparse_semi_structured_addmm",
}
LEFT_FACTOR = {f"aten.{name}": left for left, names in _PRODUCTS.items() for name in names.split()}
"""Index of the left factor of each matrix product among the arguments of its op; weights that are 2:4 sparse
count as they are stored."""
LEFT_FACTOR["transformers.grouped_mm_fallback"] = 0
_GEMMS: dict[str, Callable[..., Gemm]] = {
    **{name: partial(_product, left=left) for name, left in LEFT_FACTOR.items()},
    **{name: _grouped_product for name in LEFT_FACTOR if "grouped_mm" in name},
    "aten._sparse_semi_structured_linear": lambda x, weight, *_, out, **__: _product(
        x.mT, weight, left=1, out=out.mT
    ),
    "aten.convolution": _convolution,
    "aten.convolution_backward": convolution_backward_extents,
    **{f"aten.{name}": _attention for name in _FUSED_ATTENTION},
    **{f"aten.{name}_backward": lambda _, *args, **__: _attention(*args) for name in _FUSED_ATTENTION},
}
