"""Captures `torch.autocast("cuda")` on machines without CUDA: CPU tensors are cast by CUDA's list of ops."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._C import DispatchKey, DispatchKeySet
from torch.utils._pytree import tree_leaves, tree_map

from graphs.capture.loss import CaptureError

LOWER = (
    *("conv_tbc", "prelu", "addmv", "addr", "mv", "linalg_vecdot", "chain_matmul", "linalg_multi_dot"),
    *("_thnn_fused_lstm_cell", "_thnn_fused_gru_cell", "lstm_cell", "gru_cell", "rnn_tanh_cell"),
    *("rnn_relu_cell", "einsum", "matmul", "linear", "mm", "bmm", "addmm", "addbmm", "baddbmm"),
    *("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d.input", "conv_transpose3d.input"),
    *("convolution", "_convolution", "_convolution.deprecated", "scaled_dot_product_attention"),
    "_scaled_dot_product_flash_attention",
)
"""Ops that autocast computes in the lower precision on CUDA."""
FP32 = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal"),
    *("rsqrt", "sinh", "tan", "pow.Tensor_Scalar", "pow.Tensor_Tensor", "pow.Scalar", "softplus"),
    *("layer_norm", "native_layer_norm", "rms_norm", "group_norm", "frobenius_norm.dim", "nuclear_norm"),
    *("nuclear_norm.dim", "cosine_similarity", "poisson_nll_loss", "cosine_embedding_loss", "nll_loss"),
    *("nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss", "smooth_l1_loss", "huber_loss", "mse_loss"),
    *("margin_ranking_loss", "multilabel_margin_loss", "soft_margin_loss", "triplet_margin_loss"),
    *("multi_margin_loss", "binary_cross_entropy_with_logits", "dist", "pdist", "cdist", "renorm"),
    *("logsumexp", "upsample_nearest1d", "_upsample_nearest_exact1d", "upsample_nearest2d"),
    *("_upsample_nearest_exact2d", "upsample_nearest3d", "_upsample_nearest_exact3d", "upsample_linear1d"),
    *("upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_trilinear3d", "upsample_bicubic2d"),
    "_upsample_bicubic2d_aa",
)
"""Ops that autocast computes in fp32 on CUDA."""
FP32_RESULT = (
    *("prod", "prod.dim_int", "softmax.int", "log_softmax.int", "cumprod", "cumsum", "linalg_vector_norm"),
    *("linalg_matrix_norm", "linalg_matrix_norm.str_ord", "sum", "sum.dim_IntList"),
)
"""Ops that autocast asks for a result in fp32 on CUDA, unless the model asks for another."""
PROMOTE = (
    *("addcdiv", "addcmul", "atan2", "bilinear", "cross", "dot", "vdot", "grid_sampler", "index_put"),
    *("tensordot", "scatter_add"),
)
"""Ops whose operands autocast casts to the widest type among them on CUDA."""

_KEY = "AutocastCPU"
_KEYS = DispatchKeySet(DispatchKey.AutocastCPU)

Cast = Callable[[Any, tuple[Any, ...], dict[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]]


@dataclass
class CudaRegions:
    """The CUDA regions of autocast that a capture met.

    Attributes:
        stack: stack of what to undo after the capture.
        lost: true if one was disabled before the capture began, for want of CUDA.
        knows_ops: true if CUDA's list of ops is registered.
        casts: weights that were cast in the region that is met, each with its cast.
    """

    stack: contextlib.ExitStack
    lost: bool = False
    knows_ops: bool = False
    casts: dict[int, tuple[Tensor, Tensor]] = field(default_factory=dict)

    def learn(self) -> None:
        """Registers CUDA's list of ops for CPU tensors, once; kernels that torch has chosen are set aside."""
        if not self.knows_ops:
            self.knows_ops = True
            library: Any = torch.library.Library("aten", "IMPL")  # type: ignore[no-untyped-call]
            self.stack.callback(library._destroy)
            registered = torch._C._dispatch_get_registrations_for_dispatch_key(_KEY)
            of_cpu = {name[6:] for name in registered if name.startswith("aten::")}
            same = {*LOWER, *FP32} & of_cpu
            kernels: dict[str, Any] = dict.fromkeys(of_cpu - same, torch.library.fallthrough_kernel)
            for names, cast in (
                (LOWER, lambda _, *arguments: tree_map(self._lower, arguments)),
                (FP32, lambda _, *arguments: _cast_all(arguments, torch.float32)),
                (FP32_RESULT, _with_fp32_result),
                (PROMOTE, _to_widest),
                (("binary_cross_entropy",), _refused),
            ):
                listed = filter(is_on_cudas_list, names)
                kernels |= {name: _kernel(name, cast) for name in listed if name not in same}
            for name, kernel in kernels.items():
                library.impl(name, kernel, _KEY)
                self.stack.enter_context(mock.patch.object(_overload(name), "_dispatch_cache", {}))

    def _lower(self, value: Any) -> Any:
        """Casts a tensor to the lower precision, and a weight only once in a region."""
        if not _is_cast(value):
            return value
        if id(value) in self.casts:
            return self.casts[id(value)][1]
        cast = value.to(torch.get_autocast_dtype("cpu"))
        if value.is_leaf and value.requires_grad and cast is not value:
            self.casts[id(value)] = value, cast
        return cast


def is_on_cudas_list(name: str) -> bool:
    """Says whether this version of torch has an op of these lists on its own: 2.11 lacks `rms_norm`."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{name}", "AutocastCUDA"))


@contextlib.contextmanager
def cuda_autocast() -> Iterator[CudaRegions]:
    """Makes autocast regions for CUDA hold for CPU tensors; regions cast each weight once, as in eager mode.

    A region is `torch.autocast("cuda")`, or that of `torch.cuda.amp`. From then on ops are cast by
    CUDA's list, but a cast before softmax is an op, and models that change tensors in place cast at each use.

    Source: `ATen/autocast_mode.h` of PyTorch 2.13; Micikevicius et al. 2018, "Mixed Precision Training".
    """
    region = torch.amp.autocast_mode.autocast
    make, enter = region.__init__, region.__enter__
    with contextlib.ExitStack() as stack:
        met = CudaRegions(stack)

        def make_for_cpu(
            self: Any, device_type: str, dtype: Any = None, enabled: bool = True, cache_enabled: Any = None
        ) -> None:
            if device_type == "cuda":
                met.learn()
                dtype = torch.get_autocast_dtype("cuda") if dtype is None else dtype
            # Tracing switches the cache off, which eager mode has on.
            cache = True if cache_enabled is None else cache_enabled
            make(self, "cpu" if device_type == "cuda" else device_type, dtype, enabled, cache)

        def enter_for_cpu(self: Any) -> Any:
            if not torch.is_autocast_enabled("cpu"):
                met.casts.clear()
            if self.device == "cuda":
                met.learn()
                met.lost |= not self._enabled and not torch.cuda.is_available()
                self.device = "cpu"
                stack.callback(setattr, self, "device", "cuda")
            return enter(self)  # type: ignore[no-untyped-call]

        stack.enter_context(mock.patch.object(region, "__init__", make_for_cpu))
        stack.enter_context(mock.patch.object(region, "__enter__", enter_for_cpu))
        yield met


def _overload(name: str) -> Any:
    packet, _, overload = name.partition(".")
    return getattr(getattr(torch.ops.aten, packet), overload or "default")


def _kernel(name: str, cast: Cast) -> Callable[..., Any]:
    op = _overload(name)

    def run(*args: Any, **kwargs: Any) -> Any:
        with torch._C._ExcludeDispatchKeyGuard(_KEYS):
            args, kwargs = cast(op, args, kwargs)
            return op(*args, **kwargs)

    return run


def _is_cast(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point() and value.dtype is not torch.float64


def _cast_all(arguments: Any, dtype: torch.dtype) -> Any:
    return tree_map(lambda value: value.to(dtype) if _is_cast(value) else value, arguments)


def _with_fp32_result(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    names = [argument.name for argument in op._schema.arguments]
    arguments = dict(zip(names, args, strict=False)) | kwargs
    if _is_cast(args[0]) and arguments.get("dtype") is None:
        arguments["dtype"] = torch.float32
        return (), arguments
    return args, kwargs


def _refused(op: Any, *_: Any) -> Any:
    raise CaptureError(f"autocast refuses {op} on GPUs; use binary_cross_entropy_with_logits")


def _to_widest(op: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    types = {leaf.dtype for leaf in tree_leaves((args, kwargs)) if _is_cast(leaf)}
    widest = torch.float32 if torch.float32 in types or len(types) > 1 else next(iter(types), torch.float32)
    return _cast_all((args, kwargs), widest)
