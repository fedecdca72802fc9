"""Longest paths from the start of the step to each op and from each op to the end: t-level and b-level.

Source: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to multiprocessors",
ACM Computing Surveys 31(4), 1999, section 4.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray


def b_level(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> FloatArray:
    """Longest path from the start of each op to the end of the step, over ops and tensors in turn.

    Args:
        op_cost: seconds (or any unit) of each op, (n_ops,).
        tensor_cost: transfer of each tensor in the same unit, (n_tensors,); zeros for free transfers.

    Returns:
        Cost of the longest path, the op included, (n_ops,).

    Raises:
        ValueError: an array of another length.
    """
    _check_costs(graph, op_cost, tensor_cost)
    # Python lists: item by item they are several times faster than arrays.
    cost = np.asarray(op_cost, dtype=np.float64).tolist()
    level = list(cost)
    for producer, transfer, readers in _tensors(graph, tensor_cost, reverse=True):
        if readers:
            level[producer] = max(
                level[producer], cost[producer] + transfer + max(map(level.__getitem__, readers))
            )
    return np.array(level, dtype=np.float64)


def t_level(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> FloatArray:
    """Longest path from the start of the step to the start of each op, the op itself left out.

    Args, returns and raises as in `b_level`.
    """
    _check_costs(graph, op_cost, tensor_cost)
    cost = np.asarray(op_cost, dtype=np.float64).tolist()
    level = [0.0] * graph.n_ops
    for producer, transfer, readers in _tensors(graph, tensor_cost, reverse=False):
        arrival = level[producer] + cost[producer] + transfer
        for reader in readers:
            level[reader] = max(level[reader], arrival)
    return np.array(level, dtype=np.float64)


def critical_path_s(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray | None = None) -> float:
    """Cost of the longest path through the graph, in the unit of the costs; transfers are free by default."""
    transfer = np.zeros(graph.n_tensors) if tensor_cost is None else tensor_cost
    return float(b_level(graph, op_cost, transfer).max())


def _tensors(
    graph: OpGraph, tensor_cost: FloatArray, *, reverse: bool
) -> Iterator[tuple[int, float, list[int]]]:
    """Producer, cost and readers of each tensor, in (or against) the program order of the producers."""
    producers, transfer = graph.tensor_producer.tolist(), np.asarray(tensor_cost, dtype=np.float64).tolist()
    ptr, readers = graph.consumers.ptr.tolist(), graph.consumers.items.tolist()
    order = np.argsort(graph.tensor_producer, kind="stable")
    for tensor in (order[::-1] if reverse else order).tolist():
        yield producers[tensor], transfer[tensor], readers[ptr[tensor] : ptr[tensor + 1]]


def _check_costs(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> None:
    expected = {"op_cost": (op_cost, graph.n_ops), "tensor_cost": (tensor_cost, graph.n_tensors)}
    for label, (values, length) in expected.items():
        if np.shape(values) != (length,):
            raise ValueError(
                f"graph '{graph.name}': {label} has shape {np.shape(values)}; expected ({length},)"
            )
