"""A captured step that can still be run: its op graph, the trace behind it, and the memory of its nodes."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils._pytree import tree_leaves, tree_map

from graphs.capture.step import Step
from graphs.capture.tracing import Trace, is_mutable
from graphs.capture.values import node_value, op_packet, tensor_bytes
from graphs.op_graph import OpGraph
from graphs.optimizers import Updates

_ALIASES = (torch.ops.aten._unsafe_view, torch.ops.aten.lift_fresh, torch.ops.aten.lift_fresh_copy)


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """The op graph of a step with the traced nodes behind its ops.

    Attributes:
        step: the model on fake tensors, which knows the shapes of state and inputs.
        trace: the traced nodes; views among them are no ops.
        storages: the memory behind each node, as `find_storages` finds it.
        updates: work and state of the optimizers.
        op_of_node: op of each node that computes.
        op_of_source: op of each parameter, buffer and input by its name in `Trace.sources`.
        op_of_update: op that updates each parameter, by path.
    """

    graph: OpGraph
    step: Step
    trace: Trace
    storages: Mapping[fx.Node, Any]
    updates: Updates
    op_of_node: Mapping[fx.Node, int]
    op_of_source: Mapping[str, int]
    op_of_update: Mapping[str, int]


@dataclass(frozen=True, eq=False)
class Storage:
    """Memory that one node allocates; all views of it share the storage."""

    node: fx.Node
    bytes: float


def find_storages(trace: Trace) -> dict[fx.Node, Any]:
    """Finds the storages behind what each node yields, nested alike; None where a value is no tensor."""
    storages: dict[fx.Node, Any] = {}
    of_source: dict[str, Any] = {}
    for node in trace.nodes:
        if node.target is operator.getitem:
            storages[node] = storages[node.args[0]][node.args[1]]  # type: ignore[index]
        elif _is_view(node):
            # None is behind a view of a Python number, such as the conjugate of 1j.
            bases = (storage for base in node.all_input_nodes[:1] for storage in storages_in(storages[base]))
            base = next(bases, None)
            value = node_value(node)
            storages[node] = base if isinstance(value, Tensor) else tree_map(lambda _, base=base: base, value)
        elif node in trace.sources:
            storages[node] = of_source.setdefault(trace.sources[node], _allocate(node))
        else:
            storages[node] = _allocate(node)
    return storages


def _allocate(node: fx.Node) -> Any:
    def storage(value: Any) -> Storage | None:
        return Storage(node, tensor_bytes(node, value)) if isinstance(value, Tensor) else None

    value = node_value(node)
    return storage(value) if isinstance(value, Tensor) else tree_map(storage, value)


def storages_in(nested: Any) -> list[Storage]:
    """Returns the storages in one value of `find_storages`."""
    if isinstance(nested, Storage):
        return [nested]
    return [leaf for leaf in tree_leaves(nested) if isinstance(leaf, Storage)]


def live_nodes(trace: Trace) -> set[fx.Node]:
    """Returns the nodes that a result, gradient, held value, unread op or change in place depends on."""
    live = {*trace.results, *trace.gradients.values(), *trace.held, *trace.unread}
    for node in reversed(trace.nodes):
        if node in live or is_mutable(node):
            live.add(node)
            live.update(node.all_input_nodes)
    return live


def _is_view(node: fx.Node) -> bool:
    """Says whether a node allocates nothing, such as a clone that keeps the layout, which tracing leaves.

    A clone of a conjugated or negated view computes what the view only notes.
    """
    if op_packet(node) in _ALIASES or getattr(node.target, "is_view", False):
        return True
    if op_packet(node) is not torch.ops.aten.clone:
        return False
    before, after = node_value(node.all_input_nodes[0]), node_value(node)
    is_noted = before.is_conj() == after.is_conj() and before.is_neg() == after.is_neg()
    return bool(is_noted and before.stride() == after.stride())
