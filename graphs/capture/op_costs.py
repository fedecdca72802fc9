"""Costs of one traced op: floating-point operations and memory traffic, from shapes alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import reduce
from math import log2, prod
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils.flop_counter import flop_registry

from graphs.capture.loss import CaptureError
from graphs.capture.op_arithmetic import (
    LEFT_FACTOR,
    convolution_backward_extents,
    dense_extents,
    tensor_dtype,
)
from graphs.capture.values import (
    SPARSE_WRAP,
    count_numbers,
    density,
    is_sparse,
    is_torch,
    node_value,
    op_arguments,
    op_packet,
    sparse_sizes,
    tensor_bytes,
    tensors_of,
)

Formula = Callable[..., float]

aten = torch.ops.aten


def op_flops(node: fx.Node) -> float:
    """Floating-point operations of one traced op.

    A multiply-add of a matrix product counts twice; of sparse factors, those with stored numbers count.
    Convolutions, attention and ops with formulas of the user's follow `torch.utils.flop_counter`; grouped
    convolution backward, attention on CPU tensors and Fourier transforms, which it counts too high or not at
    all, have formulas of their own. Any other op counts one per number in its largest operand or result;
    copies count none, and additions of rows one per element of the rows. Complex: an element is two numbers,
    a product of two takes 6, a multiply-add 8.
    """
    packet = op_packet(node)
    if packet in _MOVES:
        return 0.0
    results = tensors_of(node_value(node))
    multiply_add = 4.0 if results[0].is_complex() else 1.0
    if str(packet) in LEFT_FACTOR:
        return 2 * multiply_add * prod(dense_extents(node)) * prod(map(density, node.all_input_nodes))
    formula = _FORMULAS.get(packet) or _FORMULAS.get(str(packet))
    if is_sparse(node) and not formula:
        return float(sparse_sizes(node)[0])
    args, kwargs = op_arguments(node)
    if formula:
        return float(formula(*args, **kwargs))
    if packet in flop_registry:
        try:
            return multiply_add * float(flop_registry[packet](*args, **kwargs, out_val=node_value(node)))
        except Exception as error:
            raise CaptureError(f"the formula for the flops of {packet} failed: {error!r}") from error
    operands = [tensor for source in node.all_input_nodes for tensor in tensors_of(node_value(source))]
    if packet in _PRODUCTS and len(operands) > 1 and all(tensor.is_complex() for tensor in operands):
        return 6.0 * results[0].numel()
    return max(map(_largest, (node, *node.all_input_nodes)))


def _largest(node: fx.Node) -> float:
    """Numbers in the largest tensor that a node yields."""
    sizes = [sparse_sizes(node)[0]] if is_sparse(node) else map(count_numbers, tensors_of(node_value(node)))
    return float(max(sizes, default=0))


def cost_notices(nodes: Iterable[fx.Node]) -> Iterator[str]:
    """Lines that tell which costs of computing nodes are not known, and the remedy."""
    nodes = list(nodes)
    if guessed := sorted({str(op_packet(node)) for node in nodes if _is_guess(node)}):
        yield (
            f"the time of {', '.join(guessed)} is a guess (an operation per number, each tensor moved once); "
            "give its flops to torch.utils.flop_counter.register_flop_formula"
        )
    used = {other for node in nodes for other in (node, *node.all_input_nodes)}
    made = [tensor for node in used for tensor in tensors_of(node_value(node))]
    if unknown := sorted({str(t.dtype) for t in made if tensor_dtype([t]) == "fp8"} - _FP8):
        yield f"{', '.join(unknown)} is no type that the cost model knows; it is costed as fp8"


def _is_guess(node: fx.Node) -> bool:
    """Says whether an op without formula is not PyTorch's own, or takes more than its numbers say."""
    packet, name = op_packet(node), str(op_packet(node))
    is_known = packet in _FORMULAS or name in _FORMULAS or name in LEFT_FACTOR or packet in flop_registry
    foreign = node.op == "call_function" and not is_torch(packet)
    return not is_known and (foreign or bool(_ALGEBRA.match(name)))


def op_bytes(node: fx.Node, storage_of: Callable[[fx.Node], tuple[object, float]]) -> float:
    """Memory traffic of one traced op in bytes: every distinct input read once, every output written once.

    Of the table that a look-up reads, only the rows that it needs are read. Fused attention reads its inputs
    and writes its outputs, among them a number per row of the scores, but no scores.

    Args:
        storage_of: returns the storage that an input node sees and its size in bytes. Reading through several
            views of one storage counts no more than the storage.
    """
    packet = op_packet(node)
    if packet in _UNTOUCHED:
        return 0.0
    written = _value_bytes(node)
    if packet in _FILLS:
        return written
    read: dict[object, float] = {}
    limit: dict[object, float] = {}
    for source in node.all_input_nodes:
        seen = _value_bytes(source)
        if packet in _LOOKUPS and source is node.args[0]:
            seen = min(seen, written)
        elif packet in _BAGS and source is node.args[_BAGS[packet]]:
            seen = min(seen, _bag_bytes(node))
        key, limit[key] = storage_of(source)
        read[key] = read.get(key, 0.0) + seen
    return written + sum(min(amount, limit[key]) for key, amount in read.items())


def _value_bytes(node: fx.Node) -> float:
    return float(sum(tensor_bytes(node, tensor) for tensor in tensors_of(node_value(node))))


def _bag_bytes(node: fx.Node) -> float:
    """Bytes of the rows that the bags of a node look up."""
    first = _BAGS[op_packet(node)]
    table, indices = (node_value(source) for source in node.args[first : first + 2])  # type: ignore[arg-type]
    return float(indices.numel() * table.shape[1] * table.element_size())


def _packets(*names: str) -> frozenset[Any]:
    return frozenset(getattr(aten, name) for name in names)


def _attention(query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object) -> int:
    """Two products: queries by keys, scores by values."""
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (query.shape[-1] + value.shape[-1])


def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: object, **__: object
) -> int:
    """Five products: the scores again, then the gradients of scores, values, queries and keys."""
    scores = prod(query.shape[:-1]) * key.shape[-2]
    return 2 * scores * (3 * query.shape[-1] + 2 * value.shape[-1])


def _trilinear(*args: Any, **_: object) -> int:
    """A multiply-add for each combination of three operands, which are expanded by given dimensions."""
    operands = [reduce(Tensor.unsqueeze, *pair) for pair in zip(args[3:6], args[:3], strict=True)]
    return 2 * prod(torch.broadcast_tensors(*operands)[0].shape)  # type: ignore[no-untyped-call]


def _bag(table: Tensor, indices: Tensor, *_: object, **__: object) -> int:
    """One addition per element of the rows that are looked up."""
    return indices.numel() * table.shape[1]


def _fft_to_real(x: Tensor, dims: list[int], normalization: object, last_size: int, **_: object) -> float:
    """Half of what a complex signal of the result's shape takes."""
    shape = list(x.shape)
    shape[dims[-1]] = last_size
    return _fft_flops(shape, dims) / 2


def _fft_flops(shape: Sequence[int], dims: list[int]) -> float:
    """5 N log2 N for a complex signal of N elements, as by radix-2 (Cooley and Tukey 1965)."""
    return 5 * prod(shape) * log2(prod(shape[dim] for dim in dims))


_FORMULAS: dict[Any, Formula] = {
    aten.convolution_backward: lambda *values, **_: 2 * prod(convolution_backward_extents(*values)),
    aten._scaled_dot_product_flash_attention_for_cpu: _attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
    aten._trilinear: _trilinear,
    "transformers.grouped_mm_fallback_backward": lambda grad, rows, *_: 4 * grad.numel() * rows.shape[-1],
    aten.embedding_dense_backward: lambda grad, *_, **__: grad.numel(),
    aten._embedding_bag: _bag,
    aten._embedding_bag_forward_only: _bag,
    aten._embedding_bag_backward: _bag,
    aten._embedding_bag_dense_backward: _bag,
    aten._fft_c2c: lambda x, dims, *_, **__: _fft_flops(x.shape, dims),
    aten._fft_r2c: lambda x, dims, *_, **__: _fft_flops(x.shape, dims) / 2,
    aten._fft_c2r: _fft_to_real,
}

_FP8 = {f"torch.float8_{name}" for name in ("e4m3fn", "e4m3fnuz", "e5m2", "e5m2fnuz", "e8m0fnu")}
_ALGEBRA = re.compile(
    r"aten\.(_?linalg_(?!vector_norm|cross)|_?cholesky|_?lu_|ldl_|geqrf|orm|org|triangular_solve|\w*rnn|\w*_mha)"
)
"""Factorizations and whole layers of PyTorch, which take more than an operation per number."""

_BAGS: dict[Any, int] = {
    aten._embedding_bag: 0,
    aten._embedding_bag_forward_only: 0,
    aten._embedding_bag_per_sample_weights_backward: 1,
}
"""Ops that look up rows, and which argument is the table; the next one has the indices."""

_UNTOUCHED = frozenset({SPARSE_WRAP}) | _packets(
    "empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided"
)
_FILLS = _packets(
    *("full", "full_like", "new_full", "zeros", "zeros_like", "new_zeros", "ones", "ones_like", "new_ones"),
    *("arange", "eye", "scalar_tensor", "rand", "rand_like", "randn", "randn_like"),
)
_PRODUCTS = _packets("mul", "div")
_LOOKUPS = _packets("embedding", "gather", "index", "_unsafe_index", "index_select")
_COPIES = _packets(
    *("clone", "_to_copy", "copy", "copy_", "cat", "stack", "repeat", "roll", "flip"),
    *("constant_pad_nd", "slice_scatter", "select_scatter", "slice_backward", "select_backward"),
    *("index_put", "_unsafe_index_put", "scatter", "fill", "fill_", "tril", "triu", "unfold_backward"),
)
_MOVES = _UNTOUCHED | _FILLS | _LOOKUPS | _COPIES
