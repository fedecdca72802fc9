"""Sizes of sparse gradients: a traced one knows the shape of its table, not the rows that it holds."""

from __future__ import annotations

import torch
from torch import Tensor, fx

from graphs.capture.values import node_value, op_packet, size_bytes, tensors_of

aten = torch.ops.aten

SPARSE_WRAP = aten._sparse_coo_tensor_with_dims_and_tensors
"""Joins indices and values to a sparse tensor without copying them."""


def is_sparse(node: fx.Node) -> bool:
    """Says whether a node yields a sparse tensor, such as the gradient of an embedding that asks for one."""
    return any(tensor.layout is torch.sparse_coo for tensor in tensors_of(node_value(node)))


def sparse_sizes(node: fx.Node) -> tuple[int, int]:
    """Elements and bytes that a sparse tensor holds: the rows of all look-ups, and their indices.

    Args:
        node: yields a sparse tensor: the gradient of an embedding or of a bag of embeddings, or what an op
            makes of such ones, which holds the rows of all of them.
    """
    if op_packet(node) is SPARSE_WRAP:
        indices, values = (node_value(source) for source in node.all_input_nodes[-2:])
        return values.numel(), size_bytes(indices) + size_bytes(values)
    if op_packet(node) is aten._embedding_bag_backward:
        gradient, indices = (node_value(source) for source in node.all_input_nodes[:2])
        count = indices.numel() * gradient.shape[-1]
        return count, size_bytes(indices) + count * gradient.element_size()
    parts = [sparse_sizes(source) for source in node.all_input_nodes if is_sparse(source)]
    return sum(count for count, _ in parts), sum(size for _, size in parts)


def tensor_bytes(node: fx.Node, tensor: Tensor) -> int:
    """Size in bytes of a tensor that a node yields."""
    return sparse_sizes(node)[1] if tensor.layout is torch.sparse_coo else size_bytes(tensor)
