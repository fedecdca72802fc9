"""Longest paths from the start of the step to each op and from each op to the end: t-level and b-level.

The kernels share these arguments, which they only read:

    cost, transfer: cost of each op and of each tensor, (n_ops,) and (n_tensors,).
    output_ptr, output_item: tensors of each op, int64 (n_ops + 1,) and (n_tensors,).
    consumer_ptr, consumer_item: readers of each tensor, int64 (n_tensors + 1,) and (n_reads,).

Source: Kwok and Ahmad, "Static scheduling algorithms for allocating directed task graphs to multiprocessors",
ACM Computing Surveys 31(4), 1999, section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from graphs.system.array_types import FloatArray
from graphs.system.jit import kernel

if TYPE_CHECKING:
    from graphs.op_graph import OpGraph


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
    cost, transfer = _checked(graph, op_cost, tensor_cost)
    level = cost.copy()
    outputs, consumers = graph.outputs, graph.consumers
    fill_b_level(cost, transfer, outputs.ptr, outputs.items, consumers.ptr, consumers.items, level)
    return level


def t_level(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> FloatArray:
    """Longest path from the start of the step to the start of each op, the op itself left out.

    Args, returns and raises as in `b_level`.
    """
    cost, transfer = _checked(graph, op_cost, tensor_cost)
    level = np.zeros(graph.n_ops)
    outputs, consumers = graph.outputs, graph.consumers
    fill_t_level(cost, transfer, outputs.ptr, outputs.items, consumers.ptr, consumers.items, level)
    return level


@kernel(entry=True)
def fill_b_level(cost, transfer, output_ptr, output_item, consumer_ptr, consumer_item, level):
    """Computes the b-level of every op, the last op in program order first.

    Args:
        level: (n_ops,), the cost of each op before, its b-level after; written.
    """
    for op in range(len(cost) - 1, -1, -1):
        for k in range(output_ptr[op], output_ptr[op + 1]):
            tensor = output_item[k]
            for j in range(consumer_ptr[tensor], consumer_ptr[tensor + 1]):
                below = cost[op] + transfer[tensor] + level[consumer_item[j]]
                level[op] = max(level[op], below)


@kernel(entry=True)
def fill_t_level(cost, transfer, output_ptr, output_item, consumer_ptr, consumer_item, level):
    """Computes the t-level of every op, the first op in program order first.

    Args:
        level: (n_ops,), zeros before; written.
    """
    for op in range(len(cost)):
        for k in range(output_ptr[op], output_ptr[op + 1]):
            tensor = output_item[k]
            arrival = level[op] + cost[op] + transfer[tensor]
            for j in range(consumer_ptr[tensor], consumer_ptr[tensor + 1]):
                level[consumer_item[j]] = max(level[consumer_item[j]], arrival)


def _checked(graph: OpGraph, op_cost: FloatArray, tensor_cost: FloatArray) -> tuple[FloatArray, FloatArray]:
    expected = {"op_cost": (op_cost, graph.n_ops), "tensor_cost": (tensor_cost, graph.n_tensors)}
    for label, (values, length) in expected.items():
        if np.shape(values) != (length,):
            raise ValueError(
                f"graph '{graph.name}': {label} has shape {np.shape(values)}; expected ({length},)"
            )
    cost, transfer = (np.array(values, dtype=np.float64) for values in (op_cost, tensor_cost))
    return cost, transfer
