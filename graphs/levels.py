"""How far an op is from the start and the end of the step when every device is free: t-level and b-level.

Source: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to multiprocessors",
ACM Computing Surveys 31(4), 1999, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphs.op_graph import FloatArray, OpGraph


def b_level(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> FloatArray:
    """Longest way from the start of each op to the end of the step: the op, then tensors and ops in turn.

    Args:
        op_cost: seconds (or any unit) of each op, (n_ops,).
        tensor_cost: the same for moving each tensor, (n_tensors,); zeros for a way without transfers.

    Returns:
        Cost of the longest way, (n_ops,).

    Raises:
        ValueError: an array of another length.
    """
    _check_costs(graph, op_cost, tensor_cost)
    # Python lists: item by item they are several times faster than arrays.
    cost = np.asarray(op_cost, dtype=np.float64).tolist()
    level = list(cost)
    for producer, moving, readers in _tensors(graph, tensor_cost, reverse=True):
        if readers:
            level[producer] = max(
                level[producer], cost[producer] + moving + max(map(level.__getitem__, readers))
            )
    return np.array(level, dtype=np.float64)


def t_level(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> FloatArray:
    """Longest way from the start of the step to the start of each op, the op itself left out.

    Args, returns and raises as in `b_level`.
    """
    _check_costs(graph, op_cost, tensor_cost)
    cost = np.asarray(op_cost, dtype=np.float64).tolist()
    level = [0.0] * graph.n_ops
    for producer, moving, readers in _tensors(graph, tensor_cost, reverse=False):
        arrival = level[producer] + cost[producer] + moving
        for reader in readers:
            level[reader] = max(level[reader], arrival)
    return np.array(level, dtype=np.float64)


def critical_path_s(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray | None = None) -> float:
    """Longest way through the graph in the unit of the costs; transfers cost nothing by default."""
    moving = np.zeros(graph.n_tensors) if tensor_cost is None else tensor_cost
    return float(b_level(graph, op_cost, moving).max())


def _tensors(
    graph: OpGraph, tensor_cost: FloatArray, *, reverse: bool
) -> Iterator[tuple[int, float, list[int]]]:
    """Producer, cost and readers of each tensor, in (or against) the program order of the producers."""
    producers, moving = graph.tensor_producer.tolist(), np.asarray(tensor_cost, dtype=np.float64).tolist()
    ptr, readers = graph.consumers.ptr.tolist(), graph.consumers.items.tolist()
    order = np.argsort(graph.tensor_producer, kind="stable")
    for tensor in (order[::-1] if reverse else order).tolist():
        yield producers[tensor], moving[tensor], readers[ptr[tensor] : ptr[tensor + 1]]


def _check_costs(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> None:
    expected = {"op_cost": (op_cost, graph.n_ops), "tensor_cost": (tensor_cost, graph.n_tensors)}
    for label, (values, length) in expected.items():
        if np.shape(values) != (length,):
            raise ValueError(
                f"graph '{graph.name}': {label} has shape {np.shape(values)}; expected ({length},)"
            )
