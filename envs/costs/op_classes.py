"""Classes of ops that use a device alike; an op's class follows from its type."""

from __future__ import annotations

from functools import cache

MATMULS = ("gemm", "bmm", "conv", "attention")
"""Classes whose time is arithmetic in tiles; that of the others is memory traffic."""
CLASSES = (*MATMULS, *("softmax", "norm", "elementwise", "reduction", "gather", "optimizer", "move", "other"))
TENSOR = "gemm-tensor"
"""The name in calibrations of matrix products on tensor cores (tf32, fp16, bf16), of all classes in
`MATMULS`."""

_PREFIXES = {
    "optimizer": "optim. aten._foreach aten._fused_adam aten._fused_sgd",
    "gemm": "transformers.grouped_mm_fallback",
    "attention": "aten._scaled_dot_product aten.scaled_dot_product aten._flash_attention "
    "aten._efficient_attention flex_attention",
    "conv": "aten.convolution aten.conv aten.cudnn_convolution",
    "softmax": "aten.log_softmax aten._log_softmax aten.softmax aten._softmax aten._safe_softmax",
    "norm": "aten.native_layer_norm aten.native_group_norm aten._native_batch_norm "
    "aten.native_batch_norm aten.cudnn_batch_norm aten._batch_norm aten.batch_norm "
    "aten._fused_rms_norm aten.rms_norm aten.layer_norm",
    "gather": "aten.embedding aten._embedding_bag aten.index aten._unsafe_index aten._index_put "
    "aten.gather aten.scatter aten.take aten.nll_loss aten.grid_sampler",
}
"""Classes by how a type begins; names of variants (`_backward`, `_forward`, `.default`) follow."""

_NAMES = {
    "gemm": "mm addmm linear matmul _grouped_mm mv addmv _addmm_activation _scaled_mm linear_backward",
    "bmm": "bmm baddbmm",
    "reduction": "sum mean amax amin max min argmax argmin prod var var_mean std norm linalg_vector_norm any "
    "all logsumexp cumsum avg_pool2d max_pool2d_with_indices _adaptive_avg_pool2d topk sort count_nonzero",
    "move": "clone copy copy_ _to_copy cat stack fill zeros ones full empty zeros_like ones_like full_like "
    "new_zeros new_ones new_full contiguous constant_pad_nd slice_backward select_backward "
    "slice_scatter select_scatter repeat roll flip split expand transpose permute view arange",
    "elementwise": "add sub mul div pow neg abs exp log sqrt rsqrt reciprocal sigmoid sigmoid_backward tanh "
    "tanh_backward relu threshold_backward gelu gelu_backward silu silu_backward where maximum "
    "minimum clamp native_dropout native_dropout_backward bernoulli addcmul addcdiv erf sin cos "
    "hardtanh hardtanh_backward leaky_relu leaky_relu_backward elu elu_backward softplus "
    "softplus_backward masked_fill lerp rsub square sign eq ne lt le gt ge logical_and logical_or "
    "logical_not bitwise_and bitwise_or bitwise_not hardswish hardswish_backward hardsigmoid "
    "hardsigmoid_backward mse_loss mse_loss_backward log1p expm1 floor round rand randn",
}
_BY_NAME = {f"aten.{name}": kind for kind, names in _NAMES.items() for name in names.split()}

_TRAFFIC = {
    "_softmax_backward_data": 6 / 3,
    "native_layer_norm_backward": 5 / 3,
    "_fused_rms_norm_backward": 5 / 3,
    "native_group_norm_backward": 5 / 3,
    "native_batch_norm_backward": 5 / 3,
    "cudnn_batch_norm_backward": 5 / 3,
    "native_group_norm": 3 / 2,
    "_native_batch_norm_legit": 3 / 2,
    "_native_batch_norm_legit_functional": 3 / 2,
    "cudnn_batch_norm": 3 / 2,
    "native_dropout_backward": 2.5,
    "nll_loss_backward": 1 / 2,
    "nll_loss_forward": 0.0,
}
"""Passes over the tensor that PyTorch's kernels make on a GPU, over those that a graph counts, by the op: a
graph counts every operand and result once.

The backward of a softmax first writes the product of gradient and output, and reads it again. That of a norm
reads gradient and input once for the gradient of the input and once for those of weight and bias, or for sums
over the batch. A norm over the batch or over several channels reads its input for the moments and again for
the result. A negative log-likelihood reads one number a row; its backward writes zeros and one number a row,
and reads no input. The backward of dropout has the traffic of its forward, but takes 2.5 times as long on
V100, A100, H100 and L4 (2.1 to 2.8, in the traces that come with NeuSight's steps).

Source: SoftMax.cu, layer_norm_kernel.cu, group_norm_kernel.cu, Normalization.cuh and NLLLoss2d.cu in
aten/src/ATen/native/cuda, PyTorch 2.1 to 2.13.
"""


@cache
def traffic_factor(op_type: str) -> float:
    """Returns the memory traffic of an op on a GPU over the bytes that its graph counts, by its type."""
    return _TRAFFIC.get(".".join(op_type.split(".")[1:2]), 1.0)


@cache
def op_class(op_type: str) -> str:
    """Returns the class of an op, one of `CLASSES`, by its type, e.g. `aten.addmm`; else `other`."""
    for kind, beginnings in _PREFIXES.items():
        if op_type.startswith(tuple(beginnings.split())):
            return kind
    return _BY_NAME.get(".".join(op_type.split(".")[:2]), "other")
