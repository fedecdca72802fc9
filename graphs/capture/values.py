"""Fake tensors that a traced node yields, their sizes, and the operator that it calls.

A traced sparse tensor knows its shape, not how many numbers it holds.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._pytree import tree_leaves, tree_map

from graphs.capture.loss import CaptureError
from graphs.capture.structures import as_arguments

aten = torch.ops.aten

SPARSE_WRAP = aten._sparse_coo_tensor_with_dims_and_tensors
"""Joins indices and values to a sparse tensor without copying them."""
STORED = "placewalk.stored"
"""Key under which the node of a sparse source keeps the numbers and the bytes that it holds."""
_PARTS = {
    torch.sparse_coo: ("_indices", "_values"),
    **dict.fromkeys((torch.sparse_csr, torch.sparse_bsr), ("crow_indices", "col_indices", "values")),
    **dict.fromkeys((torch.sparse_csc, torch.sparse_bsc), ("ccol_indices", "row_indices", "values")),
}
"""Methods that return the indices and values of each sparse layout."""


def node_value(node: fx.Node) -> Any:
    """Value of a node, as fake tensors; a constant that was never traced is looked up in its module."""
    if "val" not in node.meta and node.op == "get_attr":
        return constant_value(node)
    return node.meta.get("val")


def constant_value(node: fx.Node) -> Any:
    """Value of a `get_attr` node in the module that owns its graph."""
    owner = node.graph.owning_module
    assert owner is not None
    return attrgetter(str(node.target))(owner)


def tensors_of(value: Any) -> list[Tensor]:
    """The tensors of a possibly nested value, in order."""
    if isinstance(value, Tensor):
        return [value]  # nearly always, and a hundred times sooner
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def size_bytes(tensor: Tensor) -> int:
    """Bytes of the elements of a tensor; those of dimensions that are expanded (stride 0) exist once."""
    steps = tensor.stride() if tensor.layout is torch.strided else tensor.shape
    repeats = prod(size for size, step in zip(tensor.shape, steps, strict=True) if not step)
    return tensor.numel() // max(1, repeats) * tensor.element_size()


def count_numbers(tensor: Tensor) -> int:
    """Real numbers in a tensor: its elements, or twice as many if they are complex."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def op_packet(node: fx.Node) -> Any:
    """The op that a node calls, without its overload; that which functionalization wrapped, if it did."""
    target = node.args[0] if _is_wrapped(node) else node.target
    return getattr(target, "overloadpacket", target)


def is_torch(packet: Any) -> bool:
    """Says whether an op is one of PyTorch's own."""
    return str(packet).startswith(("aten.", "prims."))


def op_arguments(node: fx.Node) -> Any:
    """Values of the positional and of the keyword arguments of the op that a node calls."""
    args, kwargs = node.args, dict[str, Any](node.kwargs)
    if _is_wrapped(node):  # what the op changes is given by its place in a list
        places = {name[1:-11]: place for name, place in kwargs.items() if name.endswith("_base_index")}
        kwargs |= {name: kwargs["_all_bases"][place] for name, place in places.items() if place is not None}
        args, kwargs = tuple(kwargs.get(argument.name) for argument in args[0]._schema.arguments), {}  # type: ignore[union-attr]
    return tree_map(lambda item: node_value(item) if isinstance(item, fx.Node) else item, (args, kwargs))


def _is_wrapped(node: fx.Node) -> bool:
    return str(node.target).startswith("auto_functionalized")


def why_not_costed(tensor: Tensor) -> str:
    """Says why it is not known what a tensor stores, and the remedy; "" if it is known."""
    is_wrapper = hasattr(tensor, "__tensor_flatten__") and not hasattr(tensor, "device_mesh")
    if is_wrapper or tensor.is_nested or tensor.is_quantized or tensor.layout not in (torch.strided, *_PARTS):
        kind = "nested" if tensor.is_nested else tensor.layout
        return f"is a {type(tensor).__name__} ({kind}), whose stored size is not known; give a dense tensor"
    if tensor.layout in _PARTS and tensor.is_meta and not tensor._nnz():
        return "is sparse on the meta device, where `.to()` loses its values; give it on the CPU"
    return ""


def note_stored(sources: Mapping[fx.Node, str], module: nn.Module, inputs: Any) -> None:
    """Keeps with the nodes of sparse sources, named as in `Trace.sources`, what the real tensors hold."""
    by_name = {f"input.{index}": value for index, value in enumerate(tensors_of(as_arguments(inputs)))}
    for node in filter(is_sparse, sources):
        name = sources[node]
        tensor = by_name[name] if name in by_name else attrgetter(name)(module)
        parts = [getattr(tensor, part)() for part in _PARTS[tensor.layout]]
        node.meta[STORED] = parts[-1].numel(), sum(map(size_bytes, parts))
        for other in node.graph.nodes:
            made, makers = tensors_of(node_value(other)), filter(is_sparse, other.all_input_nodes)
            if not all(part.numel() for part in made) and any(sparse_sizes(maker)[0] for maker in makers):
                raise CaptureError(f"{other.target} reads parts of a sparse tensor; give them as inputs")


def is_sparse(node: fx.Node) -> bool:
    """Says whether a node yields a sparse tensor, such as the gradient of an embedding that asks for one."""
    return any(tensor.layout in _PARTS for tensor in tensors_of(node_value(node)))


def density(node: fx.Node) -> float:
    """Share of the elements of what a node yields that are stored: 1 if it is dense."""
    return min(1.0, sparse_sizes(node)[0] / max(1, node_value(node).numel())) if is_sparse(node) else 1.0


def sparse_sizes(node: fx.Node) -> tuple[int, int]:
    """Numbers and bytes that a sparse tensor holds: its values, or rows of look-ups, and their indices.

    Args:
        node: yields a sparse tensor: a source, the gradient of an embedding or a bag of embeddings, or what
            an op makes of such ones, which holds the numbers of all of them, or of indices and values.
    """
    if STORED in node.meta:
        return node.meta[STORED]
    if op_packet(node) is aten._embedding_bag_backward:
        gradient, indices = (node_value(source) for source in node.all_input_nodes[:2])
        count = indices.numel() * gradient.shape[-1]
        return count, size_bytes(indices) + count * gradient.element_size()
    parts = [sparse_sizes(source) for source in node.all_input_nodes if is_sparse(source)]
    if not parts:
        tensors = [node_value(source) for source in node.all_input_nodes]
        return tensors[-1].numel(), sum(tensor.numel() * tensor.element_size() for tensor in tensors)
    return sum(count for count, _ in parts), sum(size for _, size in parts)


def tensor_bytes(node: fx.Node, tensor: Tensor) -> int:
    """Size in bytes of a tensor that a node yields."""
    return sparse_sizes(node)[1] if tensor.layout in _PARTS else size_bytes(tensor)
