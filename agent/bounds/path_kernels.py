"""Longest paths and relatives of ops: passes over the edges."""

from __future__ import annotations

import numpy as np

from graphs.system.jit import kernel


@kernel(entry=True, allocates=True)
def longest_path(edges, seconds):
    """Finds the ops of a longest path.

    Args:
        edges: producer and consumer, int64 (n_edges, 2), in the order of the producers, which come first.
        seconds: of each op, (n_ops,); one op or more.

    Returns:
        Ops, int64 (n,), ascending.
    """
    n_ops = len(seconds)
    end = seconds.copy()
    before = np.full(n_ops, -1, dtype=np.int64)
    for edge in range(len(edges)):
        producer, consumer = edges[edge, 0], edges[edge, 1]
        if before[consumer] < 0 or end[producer] + seconds[consumer] > end[consumer]:
            end[consumer], before[consumer] = end[producer] + seconds[consumer], producer
    path = np.empty(n_ops, dtype=np.int64)
    at, op = n_ops, end.argmax()
    while op >= 0:
        at -= 1
        path[at] = op
        op = before[op]
    return path[at:]


@kernel(entry=True, allocates=True)
def before_and_after(edges, chosen, n_ops):
    """Says which ops are ancestors of some ops, and which are descendants.

    Args:
        edges: as of `longest_path`.
        chosen: ops, int64 (n_chosen,).
        n_ops: int.

    Returns:
        Ancestors and descendants of each, an op itself left out, 0 or 1, float64 (n_chosen, n_ops) each.
    """
    before, after = np.zeros((2, len(chosen), n_ops))
    for at in range(len(chosen)):
        op = chosen[at]
        for edge in range(len(edges)):
            if edges[edge, 0] == op or after[at, edges[edge, 0]] > 0.0:
                after[at, edges[edge, 1]] = 1.0
        for edge in range(len(edges) - 1, -1, -1):
            if edges[edge, 1] == op or before[at, edges[edge, 1]] > 0.0:
                before[at, edges[edge, 0]] = 1.0
    return before, after
