"""Costs of a step in another precision, from a graph of the step in 32-bit floats."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from graphs.op_graph import OpGraph
from graphs.step_settings import PRECISIONS
from graphs.system.array_types import BoolArray, IntArray
from graphs.system.errors import InputError


class PrecisionError(InputError):
    """A precision that does not exist, or a graph that is in another one already."""


def _types(*names: str) -> frozenset[str]:
    return frozenset(f"aten.{name}" for name in names)


_ATTENTION = tuple(f"_scaled_dot_product_{name}_attention" for name in ("flash", "efficient", "cudnn"))
_CPU_ATTENTION = "_scaled_dot_product_flash_attention_for_cpu"
_CONVOLUTIONS = _types("convolution", "convolution_backward")
_GROUPED = _types("_grouped_mm") | {
    f"transformers.grouped_mm_fallback{suffix}" for suffix in ("", "_backward")
}
_PRODUCTS = (
    _CONVOLUTIONS
    | _GROUPED
    | _types(
        *("mm", "addmm", "bmm", "baddbmm", "mv", "addmv", "addr", "linear", "prelu"),
        *(f"{name}{suffix}" for name in (*_ATTENTION, _CPU_ATTENTION) for suffix in ("", "_backward")),
    )
)
"""Ops that autocast computes in the low precision."""
_WEIGHTED = _GROUPED | _types("mm", "addmm", "bmm", "baddbmm", "linear")
"""Products whose weights may have few bits."""
BITS = {"fp8": 8.0, "int8": 8.5, "int4": 4.5}
"""Bits of a frozen weight; of integers with a 16-bit scale for each block of 32, as in Q8_0 of llama.cpp."""
_IN_FP32 = _types(
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p", "reciprocal"),
    *("rsqrt", "sinh", "tan", "pow", "softplus", "native_layer_norm", "_fused_rms_norm"),
    *("native_group_norm", "nll_loss_forward", "nll_loss2d_forward", "huber_loss", "mse_loss"),
    *("smooth_l1_loss", "binary_cross_entropy_with_logits", "_cdist_forward", "renorm", "logsumexp"),
    *("upsample_nearest2d", "upsample_bilinear2d", "upsample_bicubic2d"),
)
"""Ops of a forward pass that autocast computes in fp32."""
_TO_FP32 = _types(
    *("_softmax", "_safe_softmax", "_log_softmax", "sum", "prod", "cumsum", "cumprod", "linalg_vector_norm")
)
"""Ops of a forward pass that read what is there and yield fp32 under autocast, in one kernel."""
_BACK_IN_FP32 = _types(
    *("_softmax_backward_data", "_log_softmax_backward_data", "native_layer_norm_backward"),
    *("_fused_rms_norm_backward", "native_group_norm_backward", "nll_loss_backward", "nll_loss2d_backward"),
    *("huber_loss_backward", "mse_loss_backward", "smooth_l1_loss_backward", "softplus_backward"),
)
"""Backward passes of ops in fp32, which are in fp32."""
_AS_FIRST_INPUT = _types(
    *("native_batch_norm", "_native_batch_norm_legit", "_native_batch_norm_legit_functional"),
    *("_native_batch_norm_legit_no_training", "native_batch_norm_backward", "cudnn_batch_norm"),
)
"""Ops that yield the type of their activations, whatever that of their weights is."""
_YIELD_INTEGERS = _types(
    *("eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or", "logical_not", "isnan", "isinf"),
    *("arange", "argmax", "argmin", "bitwise_and", "bitwise_or", "bitwise_not", "randint"),
)
_SECOND_IS_INTEGER = _types(
    *("native_dropout", "max_pool2d_with_indices", "max_pool3d_with_indices", "topk"),
    *("sort", "max", "min", "kthvalue", "mode"),
)
"""Ops whose first output is of floats, and the others of integers or masks."""
_SCALAR_BYTES = 8
"""A tensor of one number does not decide the type of a result."""


def with_precision(graph: OpGraph, precision: str) -> OpGraph:
    """Costs of the same ops in another precision.

    - `fp32`, `tf32`: the dtype of matrix products and convolutions.
    - `amp-bf16`, `amp-fp16`: as under autocast for CUDA. Products, convolutions and attention compute and
      write 2-byte floats; softmax, norms, losses and sums write fp32; any other op follows its widest input.
      Casts are no ops of their own, and no host issues them: their traffic is that of the op that needs
      them. A weight is cast once, and the copy is resident beside it; the memory of other casts is not
      counted. Gradients of parameters are cast to fp32. Weights, gradients and optimizer state stay in fp32.
    - `bf16`: all floats, resident ones too, take 2 bytes.
    - `int4`, `int8`, `fp8`: as `bf16`, but frozen weights that only products read take the bits of `BITS`.
      Trained weights, embeddings and the head stay in bf16: the weights of the last product, unless its
      module is numbered. Products compute in bf16; unpacking weights is not counted.

    Args:
        graph: step in 32-bit floats, for weights of few bits also of one in 16 bits; where it does not
            say its dtypes, all are taken to be floats but the results of comparisons and indices.

    Returns:
        A graph with the same ops and tensors; traffic of an op changes as the sizes of the tensors at it do.

    Raises:
        PrecisionError: no such precision, or the graph computes in another precision than fp32 or tf32.

    Source: `ATen/autocast_mode.h` of PyTorch 2.13; Micikevicius et al. 2018, "Mixed Precision Training".
    """
    if precision not in PRECISIONS:
        raise PrecisionError(f"unknown precision '{precision}'; use one of {', '.join(PRECISIONS)}")
    if precision in BITS and set(graph.dtypes) <= {"int", "bf16", "fp16"}:
        return _in_few_bits(graph, BITS[precision])
    for op, dtype in enumerate(graph.dtypes):
        if dtype not in ("", "fp32", "tf32", "int"):
            raise PrecisionError(
                f"graph '{graph.name}': op {op} ('{graph.op_names[op]}') computes in {dtype}; only a graph "
                f"in fp32 can be given precision {precision}"
            )
    if precision in ("fp32", "tf32"):
        is_product = [
            kind in _PRODUCTS and graph.dtypes[op] != "int" for op, kind in enumerate(graph.op_types)
        ]
        dtypes = tuple(precision if product else _dtype(graph, op) for op, product in enumerate(is_product))
        return replace(graph, dtypes=dtypes)
    if precision in ("bf16", *BITS):
        halved = _in_two_bytes(graph)
        return _in_few_bits(halved, BITS[precision]) if precision in BITS else halved
    return _Autocast(graph, precision.removeprefix("amp-")).run()


def _dtype(graph: OpGraph, op: int) -> str:
    """The dtype of an op, guessed where it is not said."""
    if graph.dtypes[op]:
        return graph.dtypes[op]
    if graph.op_types[op] in _YIELD_INTEGERS:
        return "int"
    return "tf32" if graph.op_types[op] in _CONVOLUTIONS else "fp32"


def _holds_floats(graph: OpGraph) -> BoolArray:
    """Says whether each tensor is of floats, bool (n_tensors,)."""
    floats = np.array([_dtype(graph, op) != "int" for op in range(graph.n_ops)])
    floats &= np.array([kind not in _YIELD_INTEGERS for kind in graph.op_types])
    held: BoolArray = floats[graph.tensor_producer]
    for op, kind in enumerate(graph.op_types):
        if kind in _SECOND_IS_INTEGER:
            held[graph.outputs.row(op)[1:]] = False
    return held


def _in_two_bytes(graph: OpGraph) -> OpGraph:
    dtypes = tuple("int" if _dtype(graph, op) == "int" else "bf16" for op in range(graph.n_ops))
    share = np.where(_holds_floats(graph), 0.5, 1.0)
    moved = np.ones(graph.n_ops)
    for op in range(graph.n_ops):
        tensors = np.concatenate([graph.inputs.row(op), graph.outputs.row(op)])
        if before := graph.tensor_bytes[tensors].sum():
            moved[op] = (graph.tensor_bytes[tensors] * share[tensors]).sum() / before
    is_float, is_update = np.array(dtypes) == "bf16", np.array(graph.phases) == "optimizer"
    return replace(
        graph,
        dtypes=dtypes,
        tensor_bytes=graph.tensor_bytes * share,
        bytes_moved=graph.bytes_moved * np.where(is_update, 0.5, moved),
        resident_bytes=graph.resident_bytes * np.where(is_float, 0.5, 1.0),
    )


def _in_few_bits(graph: OpGraph, bits: float) -> OpGraph:
    """Shrinks frozen weights that only products read, from 16 bits; an op without traffic is no reader."""
    share = bits / 16
    sizes, moved, resident = graph.tensor_bytes.copy(), graph.bytes_moved.copy(), graph.resident_bytes.copy()
    gemm, head = graph.gemm.copy(), _head(graph)
    for tensor, source in enumerate(graph.tensor_producer.tolist()):
        readers = [op for op in graph.consumers.row(tensor).tolist() if graph.bytes_moved[op]]
        weighted = readers and all(
            graph.op_types[op] in _WEIGHTED and sizes[tensor] > 2 * graph.gemm[op, 2] for op in readers
        )  # a bias is as large as a row
        is_float = graph.op_types[source] == "parameter" and graph.dtypes[source] in ("bf16", "fp16")
        is_frozen = resident[source] <= sizes[tensor]
        if is_float and is_frozen and weighted and head not in readers:
            for op in readers:
                at_op = np.concatenate([graph.inputs.row(op), graph.outputs.row(op)])
                others = graph.tensor_bytes[at_op[at_op != tensor]].sum()
                read = np.clip(graph.bytes_moved[op] - others, 0.0, graph.tensor_bytes[tensor])
                moved[op] -= (1 - share) * read
                gemm[op] = 0
            sizes[tensor] *= share
            resident[source] *= share
    return replace(graph, tensor_bytes=sizes, bytes_moved=moved, resident_bytes=resident, gemm=gemm)


def _head(graph: OpGraph) -> int:
    """Finds the last forward product with weights; -1 if its module is numbered, and so one of a list."""
    last = -1
    for op, kind in enumerate(graph.op_types):
        if kind in _WEIGHTED and graph.phases[op] == "forward":
            has_weights = any(graph.op_types[source] == "parameter" for source in graph.predecessors.row(op))
            last = op if has_weights else last
    return -1 if any(map(str.isdecimal, graph.modules[last].split("."))) else last


class _Autocast:
    """The types of all tensors under autocast, op by op in program order; `low` is the dtype of 2 bytes."""

    def __init__(self, graph: OpGraph, low: str) -> None:
        self.graph, self.low = graph, low
        self.is_float = _holds_floats(graph)
        self.is_low = np.zeros(graph.n_tensors, dtype=bool)
        self.was_cast = np.zeros(graph.n_tensors, dtype=bool)
        self.is_weight = (np.array(graph.op_types) == "parameter")[graph.tensor_producer]
        made_forward = (np.array(graph.phases) == "forward") & ~graph.is_source
        self.is_saved = made_forward[graph.tensor_producer]
        self.is_gradient = (graph.tensor_owner >= 0) & ~self.is_weight
        self.moved = graph.bytes_moved.copy()
        self.dtypes = [_dtype(graph, op) for op in range(graph.n_ops)]

    def run(self) -> OpGraph:
        """Re-costs every op."""
        graph = self.graph
        for op in range(graph.n_ops):
            if not graph.is_source[op] and graph.phases[op] != "optimizer" and self.dtypes[op] != "int":
                self._decide(op)
        share = np.where(self.is_low & ~self.is_gradient, 0.5, 1.0)
        # Autocast keeps the casts of weights until it ends, and the backward pass reads them.
        copied, resident = self.is_weight & self.was_cast, graph.resident_bytes.copy()
        np.add.at(resident, graph.tensor_producer[copied], 0.5 * graph.tensor_bytes[copied])
        return replace(
            graph,
            dtypes=tuple(self.dtypes),
            tensor_bytes=graph.tensor_bytes * share,
            bytes_moved=self.moved,
            resident_bytes=resident,
        )

    def _decide(self, op: int) -> None:
        """Sets the dtype of an op, the types of its outputs and its traffic, casts included."""
        graph, kind = self.graph, self.graph.op_types[op]
        forward = graph.phases[op] == "forward"
        inputs = graph.inputs.row(op)
        inputs = inputs[self.is_float[inputs]]
        outputs = graph.outputs.row(op)
        outputs = outputs[self.is_float[outputs]]
        reads_low = self.is_low[inputs]
        if kind in _PRODUCTS:
            low, casts = True, ~reads_low
            reads_low = np.ones(len(inputs), dtype=bool)
        elif (kind in _IN_FP32 and forward) or kind in _BACK_IN_FP32:
            low, casts = False, reads_low
            reads_low = np.zeros(len(inputs), dtype=bool)
        else:
            low, casts = self._follows(op, inputs), np.zeros(len(inputs), dtype=bool)
            low &= not (kind in _TO_FP32 and forward)
            if low:  # a gradient in fp32 of what is low is cast first
                stays = self.is_saved[inputs] | self.is_weight[inputs]
                casts = ~reads_low & ~stays & (graph.tensor_bytes[inputs] > _SCALAR_BYTES)
                reads_low = reads_low | casts
        self.dtypes[op] = self.low if low else "fp32"
        self.is_low[outputs] = low
        self._set_traffic(op, inputs, reads_low, outputs, inputs[casts])

    def _follows(self, op: int, inputs: IntArray) -> bool:
        """Says whether an op yields low floats: if the widest that it reads are.

        An op of the backward pass yields the type of what the forward pass saved for it.
        """
        if self.graph.op_types[op] in _AS_FIRST_INPUT:
            inputs = inputs[~self.is_weight[inputs]]
        large = inputs[self.graph.tensor_bytes[inputs] > _SCALAR_BYTES]
        if self.graph.phases[op] == "backward" and self.is_saved[large].any():
            large = large[self.is_saved[large]]
        return bool(len(large)) and bool(self.is_low[large].all())

    def _set_traffic(
        self, op: int, inputs: IntArray, reads_low: BoolArray, outputs: IntArray, casts: IntArray
    ) -> None:
        sizes = self.graph.tensor_bytes
        at_op = np.concatenate([self.graph.inputs.row(op), self.graph.outputs.row(op)])
        before = sizes[at_op].sum()
        if before:
            saved = 0.5 * (sizes[inputs[reads_low]].sum() + sizes[outputs[self.is_low[outputs]]].sum())
            self.moved[op] *= 1 - saved / before
        # The forward pass leaves its casts to the backward pass, and casts only weights once.
        keeps = self.was_cast[casts] & (self.is_weight[casts] | (self.graph.phases[op] == "backward"))
        self.moved[op] += 1.5 * sizes[casts[~keeps]].sum()
        self.was_cast[casts] = True
        gradients = outputs[self.is_gradient[outputs] & self.is_low[outputs]]
        self.moved[op] += 1.5 * sizes[gradients].sum()
