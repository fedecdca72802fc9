"""A topological order that keeps critical ops apart from ops with slack."""

from __future__ import annotations

import heapq

import numpy as np

from graphs.graph_columns import Csr
from graphs.levels import b_level, t_level
from graphs.nominal_costs import nominal_op_s
from graphs.op_graph import OpGraph
from graphs.system.array_types import FloatArray, IntArray

NOMINAL_LAUNCH_S = 6e-6
FINEST_SLACK = 0.01
"""Slack below this share of the critical path makes no difference."""


def slack_order(graph: OpGraph, ops: IntArray, window: IntArray) -> tuple[IntArray, IntArray]:
    """Orders ops window by window, and within a window by slack class as far as dependencies allow.

    In the backward pass this separates the gradients of activations, which the next layer waits for, from
    those of weights, which only the update at the end reads; in a recurrent network the state from the
    losses.

    Args:
        ops: the ops to order, in program order, int (n,).
        window: window of each of them, ascending from 0, int (n,).

    Returns:
        The ops in their new order, topological as well, int (n,); and a key for each, int (n,), which changes
        from one to the next where the window or the slack class does.
    """
    key = window * 64 + slack_class(graph)[ops]
    item = np.full(graph.n_ops, -1, dtype=np.int64)
    item[ops] = np.arange(len(ops))
    pairs = item[graph.edges]
    order = _topological_by_key(len(ops), pairs[(pairs >= 0).all(axis=1)], key.tolist())
    return ops[order], key[order]


def slack_class(graph: OpGraph) -> IntArray:
    """Classifies ops by how long they can wait, at nominal costs and without transfers, int (n_ops,).

    Class 0 is less than `FINEST_SLACK` of the critical path, 1 less than 3 times it, 2 less than 7, up to 6.
    """
    seconds, instant = nominal_seconds(graph), np.zeros(graph.n_tensors)
    through = t_level(graph, seconds, instant) + b_level(graph, seconds, instant)
    longest = max(float(through.max()), np.finfo(float).tiny)
    slack = np.maximum(longest - through, 0.0) / longest
    return np.log2(slack / FINEST_SLACK + 1.0).astype(np.int64)


def nominal_seconds(graph: OpGraph) -> FloatArray:
    """Adds a launch to `nominal_op_s` for every op but parameters and inputs, (n_ops,)."""
    seconds: FloatArray = nominal_op_s(graph) + NOMINAL_LAUNCH_S * ~graph.is_source
    return seconds


def topological_order(n: int, pairs: IntArray) -> IntArray:
    """Sorts `n` items topologically, always taking the least item that is ready.

    Args:
        pairs: (before, after), int (n_pairs, 2); they form no cycle.
    """
    return _topological_by_key(n, pairs, [0] * n)


def _topological_by_key(n: int, pairs: IntArray, key: list[int]) -> IntArray:
    """A topological order that takes the least ready item of the current key, else the least of all.

    Where items are numbered topologically and keys ascend by window, it completes a window before it begins
    the next, as the items of a window depend on none of a later one.
    """
    after = Csr.from_pairs(pairs[:, 0], pairs[:, 1], n)
    ptr, items = after.ptr.tolist(), after.items.tolist()
    waits_for = np.bincount(pairs[:, 1], minlength=n).tolist()
    ready = [item for item in range(n) if waits_for[item] == 0]
    of_key: dict[int, list[int]] = {}
    for item in ready:
        of_key.setdefault(key[item], []).append(item)
    taken, order = [False] * n, list[int]()
    while len(order) < n:
        item = heapq.heappop((of_key.get(key[order[-1]]) if order else None) or ready)
        if taken[item]:
            continue
        taken[item] = True
        order.append(item)
        for reader in items[ptr[item] : ptr[item + 1]]:
            waits_for[reader] -= 1
            if waits_for[reader] == 0:
                heapq.heappush(ready, reader)
                heapq.heappush(of_key.setdefault(key[reader], []), reader)
    return np.array(order, dtype=np.int64)
