"""Fake tensors that a traced node yields, and the operator that it calls."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map


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
        at = {name[1:-11]: place for name, place in kwargs.items() if name.endswith("_base_index")}
        kwargs |= {name: kwargs["_all_bases"][place] for name, place in at.items() if place is not None}
        args, kwargs = tuple(kwargs.get(each.name) for each in args[0]._schema.arguments), {}  # type: ignore[union-attr]
    return tree_map(as_value, (args, kwargs))


def _is_wrapped(node: fx.Node) -> bool:
    return str(node.target).startswith("auto_functionalized")


def as_value(item: Any) -> Any:
    """Value of an argument: that of the node, if it is one."""
    return node_value(item) if isinstance(item, fx.Node) else item
