"""Fake tensors that a traced node yields, and the operator that it calls."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, fx
from torch.utils._pytree import tree_leaves


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
    """Elements times the size of one, in bytes."""
    return tensor.numel() * tensor.element_size()


def count_numbers(tensor: Tensor) -> int:
    """Real numbers in a tensor: its elements, or twice as many if they are complex."""
    return tensor.numel() * (2 if tensor.is_complex() else 1)


def op_packet(node: fx.Node) -> Any:
    """The op that a node calls, without its overload."""
    return getattr(node.target, "overloadpacket", node.target)


def as_value(item: Any) -> Any:
    """Value of an argument: that of the node, if it is one."""
    return node_value(item) if isinstance(item, fx.Node) else item
