"""Earliest starts of ops under any placement: transfers count, links and hosts are free.

An ancestor of an op that is on another device delays it by at least one transfer. So if the op starts before
a time, all ancestors that would delay it beyond that time are on its own device, one after the other
(Papadimitriou and Yannakakis 1990). The least over all times is the bound.
"""

from __future__ import annotations

import numpy as np

from graphs.limits import ROUNDING
from graphs.system.jit import kernel

MAX_ANCESTORS = 48
"""Ancestors of an op that are looked at; with fewer the bound is lower, and still one."""


@kernel(entry=True, allocates=True)
def earliest_starts(ptr, producer, apart_s, unit_of, seconds, gap_s):
    """Computes a lower bound on the start of each op.

    Args:
        ptr, producer: rows of what each op reads, int64 (n_ops + 1,) and (n_edges,); producers come first.
        apart_s: least seconds of a transfer along each edge, (n_edges,).
        unit_of: placement unit of each op, int64 (n_ops,).
        seconds: of each op on each device, (n_ops, n_devices).
        gap_s: seconds that a device rests after an op that takes time.

    Returns:
        Seconds, (n_ops,).
    """
    n_ops = len(seconds)
    fastest = np.empty(n_ops)
    for op in range(n_ops):
        fastest[op] = seconds[op].min()
    start = np.zeros(n_ops)
    found = np.empty(MAX_ANCESTORS, dtype=np.int64)
    path_s, least_s, delay_s = np.empty((3, MAX_ANCESTORS))
    slot = np.full(n_ops, -1, dtype=np.int64)
    for op in range(n_ops):
        base = 0.0
        for edge in range(ptr[op], ptr[op + 1]):
            base = max(base, start[producer[edge]] + fastest[producer[edge]])
        n_found = collect(
            op, base, ptr, producer, apart_s, unit_of, start, fastest, slot, found, path_s, least_s
        )
        for at in range(n_found):
            delay_s[at] = start[found[at]] + fastest[found[at]] + path_s[at] + least_s[at]
            if unit_of[found[at]] == unit_of[op]:
                delay_s[at] = np.inf
            slot[found[at]] = -1
        latest_first = np.argsort(-delay_s[:n_found])
        start[op] = base
        if n_found:
            start[op] = threshold(
                base, found[latest_first], delay_s[latest_first], path_s[latest_first], start, seconds, gap_s
            )
    return start


@kernel
def collect(op, base, ptr, producer, apart_s, unit_of, start, fastest, slot, found, path_s, least_s):
    """Finds ancestors of an op that delay it beyond its base if they are on another device.

    Ancestors are followed from the op back, the last in program order first, so that what is between an
    ancestor and the op is known when the ancestor is followed.

    Args:
        op: index of the op, int.
        base: start of the op where transfers are free, seconds.
        ptr, producer, apart_s, unit_of: as of `earliest_starts`.
        start, fastest: of the ops before, seconds, (n_ops,).
        slot: index in `found` of each op, int64 (n_ops,), -1 = none; written.
        found: the ancestors, int64 (MAX_ANCESTORS,); written.
        path_s: seconds of the ops between an ancestor and the op on one path, (MAX_ANCESTORS,); written.
        least_s: the least transfer on that path, seconds, (MAX_ANCESTORS,); written.

    Returns:
        Number of ancestors, int.
    """
    n_found, limit, reader, between_s, transfer_s = 0, op, op, 0.0, np.inf
    while True:
        for edge in range(ptr[reader], ptr[reader + 1]):
            ancestor = producer[edge]
            least = transfer_s
            if unit_of[ancestor] != unit_of[reader]:
                least = min(least, apart_s[edge])
            delay = start[ancestor] + fastest[ancestor] + between_s + least
            at = slot[ancestor]
            if at >= 0:
                if between_s + least > path_s[at] + least_s[at]:
                    path_s[at], least_s[at] = between_s, least
            elif delay > base and n_found < MAX_ANCESTORS:
                slot[ancestor] = n_found
                found[n_found], path_s[n_found], least_s[n_found] = ancestor, between_s, least
                n_found += 1
        reader = -1
        for at in range(n_found):
            if reader < found[at] < limit:
                reader = found[at]
        if reader < 0:
            return n_found
        limit = reader
        between_s = path_s[slot[reader]] + fastest[reader]
        transfer_s = least_s[slot[reader]]


@kernel(allocates=True)
def threshold(base, ancestors, delay_s, path_s, start, seconds, gap_s):
    """Computes the least time by which an op can start, with those ancestors on its device that must be.

    Args:
        base: start of the op where transfers are free, seconds.
        ancestors: those that delay it most first, int64 (n,).
        delay_s: start of the op if an ancestor is on another device, seconds, (n,), descending.
        path_s: seconds between the end of an ancestor and the op, (n,).
        start, seconds, gap_s: as of `earliest_starts`; starts of the ops before.

    Returns:
        Seconds, float.
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
    """Inserts an ancestor into a list of those before it.

    Args:
        latest_first: indices in `ancestors` by descending start, int64 (n,), `new` of them so far; written.
        new: index of the ancestor, int.
        ancestors: int64 (n,).
        start: of the ops, seconds.
    """
    at = new
    while at > 0 and start[ancestors[latest_first[at - 1]]] < start[ancestors[new]]:
        latest_first[at] = latest_first[at - 1]
        at -= 1
    latest_first[at] = new


@kernel
def serial(latest_first, ancestors, path_s, start, seconds, gap_s):
    """Computes when an op can start after some ancestors that share its device, on the best device.

    Those that start last run after the first of them starts, one after the other, before what follows each.

    Args:
        latest_first: indices in `ancestors` by descending start, int64 (n_together,).
        ancestors: int64 (n,).
        path_s: seconds between the end of an ancestor and the op, (n,).
        start, seconds, gap_s: as of `earliest_starts`.

    Returns:
        Seconds, float.
    """
    best = np.inf
    for device in range(seconds.shape[1]):
        latest, work, tail = 0.0, 0.0, np.inf
        for at in latest_first:
            each = seconds[ancestors[at], device]
            if each > 0.0:
                work += each + gap_s
                tail = min(tail, path_s[at])
                latest = max(latest, start[ancestors[at]] + work - gap_s * (1.0 + ROUNDING) + tail)
        best = min(best, latest)
    return best
