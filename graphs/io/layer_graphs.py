"""Op graphs of the training steps of layers with measured times.

A layer becomes a forward and a backward op with measured seconds. A layer with weights also has a parameter
and its update; all ops of a layer are colocated.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from graphs.op_graph import OpGraph, build_graph
from graphs.system.json_files import FileFormatError

WEIGHT_BYTES = 4.0
"""Bytes of a weight, fp32."""
UPDATE_FLOPS, UPDATE_BYTES = 2.0, 20.0
"""Operations and memory traffic of the update of a weight: SGD with momentum reads three and writes two."""


@dataclass
class Layer:
    """One layer of a profile.

    Attributes:
        weight_bytes: bytes of its weights, which are also those of their gradients.
        resident_bytes: bytes that it holds for the whole step.
        outputs: bytes of each tensor that its forward op makes, and the layers whose forward ops read it.
        kept_bytes: bytes that its forward op keeps for its backward op; None where these are its outputs.
        gradients: bytes of each tensor that its backward op makes, and the layers whose backward ops read it.
    """

    name: str
    forward_s: float
    backward_s: float
    weight_bytes: float
    resident_bytes: float
    kept_bytes: float | None = None
    outputs: list[tuple[float, list[int]]] = field(default_factory=list)
    gradients: list[tuple[float, list[int]]] = field(default_factory=list)


def layer_graph(title: str, family: str, kind: str, layers: Sequence[Layer], order: Sequence[int]) -> OpGraph:
    """Makes the op graph: forward ops with their parameters, backward ops in reverse, updates.

    Args:
        title, family: of the graph.
        kind: device kind that the seconds were measured on.
        order: the layers in a topological order.

    Raises:
        GraphError: the graph breaks a rule of `OpGraph`.
    """
    ops: list[dict[str, object]] = []
    at: dict[tuple[str, int], int] = {}

    def add(layer: int, part: str, **columns: object) -> None:
        at[part, layer] = len(ops)
        ops.append({"name": f"{layers[layer].name}/{part}", "colocate": rank[layer], **columns})

    rank = {layer: position for position, layer in enumerate(order)}
    weighted = [layer for layer in order if layers[layer].weight_bytes]
    for layer in order:
        if layers[layer].weight_bytes:
            add(layer, "weight", type="parameter", resident_bytes=layers[layer].resident_bytes)
        state = 0.0 if layers[layer].weight_bytes else layers[layer].resident_bytes
        add(layer, "forward", type="layer", resident_bytes=state, seconds={kind: layers[layer].forward_s})
    for layer in reversed(order):
        add(layer, "backward", type="layer", phase="backward", seconds={kind: layers[layer].backward_s})
    for layer in weighted:
        n_weights = layers[layer].weight_bytes / WEIGHT_BYTES
        amounts = {"flops": UPDATE_FLOPS * n_weights, "bytes_moved": UPDATE_BYTES * n_weights}
        add(layer, "update", type="sgd", phase="optimizer", **amounts)
    tensors = [tensor for layer in order for tensor in _tensors(layer, layers[layer], at)]
    return build_graph(title, family, ops, tensors)


def _tensors(
    index: int, layer: Layer, at: Mapping[tuple[str, int], int]
) -> list[tuple[int, float, list[int]]]:
    forward, backward = at["forward", index], at["backward", index]
    own = [] if layer.kept_bytes is not None else [backward]
    found = [(forward, size, [at["forward", other] for other in to] + own) for size, to in layer.outputs]
    if layer.kept_bytes is not None:
        found.append((forward, layer.kept_bytes, [backward]))
    found += [(backward, size, [at["backward", other] for other in to]) for size, to in layer.gradients]
    if layer.weight_bytes:
        update = at["update", index]
        found.append((at["weight", index], layer.weight_bytes, [forward, backward, update]))
        found.append((backward, layer.weight_bytes, [update]))
    return found


def neighbours(edges: Sequence[tuple[int, int]], n_layers: int) -> tuple[list[list[int]], list[list[int]]]:
    """Lists the layers before and after each layer, in the order of the edges."""
    before: list[list[int]] = [[] for _ in range(n_layers)]
    after: list[list[int]] = [[] for _ in range(n_layers)]
    for one, other in dict.fromkeys(edges):
        before[other].append(one)
        after[one].append(other)
    return before, after


def in_order(before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], where: str) -> list[int]:
    """Sorts layers topologically, breadth first.

    Args:
        before, after: layers before and after each layer.
        where: begins the message of the error.

    Raises:
        FileFormatError: there is a cycle.
    """
    missing = [len(each) for each in before]
    queue = deque(index for index, count in enumerate(missing) if not count)
    order = []
    while queue:
        order.append(queue.popleft())
        for later in after[order[-1]]:
            missing[later] -= 1
            if not missing[later]:
                queue.append(later)
    if len(order) < len(before):
        raise FileFormatError(f"{where}: its edges form a cycle; a layer reads from earlier layers only")
    return order
