"""Earliest starts of ops under any placement: transfers count, links and hosts are free.

An ancestor of an op that is on another device delays it by at least one transfer. So if the op starts before
a time, all ancestors that would delay it beyond that time are on its own device, one after the other
(Papadimitriou and Yannakakis 1990). The least over all times is the bound.

The kernels share these arguments. They only read them, unless their own docstrings say otherwise:

    ptr, producer: rows of what each op reads, int64 (n_ops + 1,) and (n_edges,); producers come first.
    apart_s: least time of a transfer along each edge, seconds, (n_edges,).
    unit_of: placement unit of each op, int64 (n_ops,).
    seconds: time of each op on each device, seconds, (n_ops, n_devices).
    gap_s: rest of a device after an op that takes time, seconds.
    start, fastest: start and least time of each op before the one at hand, seconds, (n_ops,).
    base: start of the op at hand where transfers are free, seconds.
    ancestors: indices of ops, int64 (n,).
    path_s: time between the end of each ancestor and the op on one path, seconds, (n,).
    latest_first: indices in `ancestors` by descending start, int64 (n_together,).
"""

from __future__ import annotations

import numpy as np

from graphs.limits import ROUNDING
from graphs.system.jit import kernel

MAX_ANCESTORS = 48
"""Ancestors of an op that are looked at; with fewer the bound is lower, and still one."""


@kernel(entry=True, allocates=True)
def earliest_starts(ptr, producer, apart_s, unit_of, seconds, gap_s):
    """Computes a lower bound on the start of each op, seconds, (n_ops,)."""
    n_ops = len(seconds)
    fastest = np.empty(n_ops)
    for op in range(n_ops):
        fastest[op] = seconds[op].min()
    start = np.zeros(n_ops)
    ancestors = np.empty(MAX_ANCESTORS, dtype=np.int64)
    path_s, least_s, delay_s = np.empty((3, MAX_ANCESTORS))
    slot = np.full(n_ops, -1, dtype=np.int64)
    for op in range(n_ops):
        base = 0.0
        for edge in range(ptr[op], ptr[op + 1]):
            base = max(base, start[producer[edge]] + fastest[producer[edge]])
        n_ancestors = collect(
            op, base, ptr, producer, apart_s, unit_of, start, fastest, slot, ancestors, path_s, least_s
        )
        for i in range(n_ancestors):
            ancestor = ancestors[i]
            delay_s[i] = start[ancestor] + fastest[ancestor] + path_s[i] + least_s[i]
            if unit_of[ancestor] == unit_of[op]:
                delay_s[i] = np.inf
            slot[ancestor] = -1
        start[op] = base
        if n_ancestors:
            rows = np.argsort(-delay_s[:n_ancestors])
            start[op] = threshold(base, ancestors[rows], delay_s[rows], path_s[rows], start, seconds, gap_s)
    return start


@kernel
def collect(op, base, ptr, producer, apart_s, unit_of, start, fastest, slot, ancestors, path_s, least_s):
    """Finds and counts ancestors of an op that delay it beyond its base if they are on another device.

    Ancestors are followed from the op back, the last in program order first, so that what is between an
    ancestor and the op is known when the ancestor is followed.

    Args:
        op: index of the op, int.
        slot: index in `ancestors` of each op, int64 (n_ops,), -1 = none; written.
        ancestors, path_s: (MAX_ANCESTORS,); written.
        least_s: the least transfer on that path, seconds, (MAX_ANCESTORS,); written.
    """
    n_ancestors, limit, reader, between_s, transfer_s = 0, op, op, 0.0, np.inf
    while True:
        for edge in range(ptr[reader], ptr[reader + 1]):
            ancestor = producer[edge]
            least = transfer_s
            if unit_of[ancestor] != unit_of[reader]:
                least = min(least, apart_s[edge])
            delay = start[ancestor] + fastest[ancestor] + between_s + least
            row = slot[ancestor]
            if row >= 0:
                if between_s + least > path_s[row] + least_s[row]:
                    path_s[row], least_s[row] = between_s, least
            elif delay > base and n_ancestors < MAX_ANCESTORS:
                slot[ancestor] = n_ancestors
                ancestors[n_ancestors], path_s[n_ancestors], least_s[n_ancestors] = ancestor, between_s, least
                n_ancestors += 1
        reader = -1
        for i in range(n_ancestors):
            if reader < ancestors[i] < limit:
                reader = ancestors[i]
        if reader < 0:
            return n_ancestors
        limit = reader
        between_s = path_s[slot[reader]] + fastest[reader]
        transfer_s = least_s[slot[reader]]


@kernel(allocates=True)
def threshold(base, ancestors, delay_s, path_s, start, seconds, gap_s):
    """Returns the least start of an op in seconds, with those ancestors on its device that must be.

    Args:
        ancestors: those that delay it most first.
        delay_s: start of the op if an ancestor is on another device, seconds, (n,), descending.
    """
    n = len(ancestors)
    latest_first = np.empty(n, dtype=np.int64)
    least = np.inf
    together = 0.0
    for count in range(n + 1):
        if count:
            insert(latest_first, count - 1, ancestors, start)
            together = serial(latest_first[:count], ancestors, path_s, start, seconds, gap_s)
        after = delay_s[count] if count < n else base
        least = min(least, max(base, max(after, together)))
        if together >= least:
            break
    return least


@kernel
def insert(latest_first, new, ancestors, start):
    """Inserts an ancestor, by its index `new`, into those before it.

    Args:
        latest_first: its first `new` entries count; written.
    """
    i = new
    while i > 0 and start[ancestors[latest_first[i - 1]]] < start[ancestors[new]]:
        latest_first[i] = latest_first[i - 1]
        i -= 1
    latest_first[i] = new


@kernel
def serial(latest_first, ancestors, path_s, start, seconds, gap_s):
    """Returns when an op can start after ancestors that share its device, on the best one, in seconds.

    Those that start last run after the first of them starts, one after the other, before what follows each.
    """
    best = np.inf
    for device in range(seconds.shape[1]):
        latest, work, tail = 0.0, 0.0, np.inf
        for place in latest_first:
            op_s = seconds[ancestors[place], device]
            if op_s > 0.0:
                work += op_s + gap_s
                tail = min(tail, path_s[place])
                latest = max(latest, start[ancestors[place]] + work - gap_s * (1.0 + ROUNDING) + tail)
        best = min(best, latest)
    return best
