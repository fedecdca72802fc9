"""Kernels that replay one action of a device and find the greatest number of bytes that it holds meanwhile.

In all kernels here `s` is the `Ledger` of the device, `x` its `Spans`, and `entry` an index of its agenda.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import LATER, RECEIVE, RECEIVE_ONCE
from envs.pipeline.ledger import first_column, freed_column, held_until, is_own_row
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from envs.simulator.memory import Holdings, sort_events
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel


class Spans(NamedTuple):
    """The entries of a device's agenda, each from when the device is free for it to the next one.

    Besides, the instants at which copies come, or tensors go as they have been sent, and scratch of replays.
    """

    since_s: FloatArray  # (n,)
    microbatch: IntArray  # (n,)
    list_of: IntArray  # (n,) list of `Parts`
    held: FloatArray  # (n,) bytes at the begin
    most: FloatArray  # (n,) bytes that may be held at once, at most
    since_copy_s: FloatArray  # (n,) when the first copy comes
    change: FloatArray  # (n,) bytes by which copies change what is held from this entry to the next
    copy: NDArray[np.int32]  # (n,) last copy that comes or goes meanwhile, -1 = none
    sent: IntArray  # rows of the part
    time_s: FloatArray  # of each copy
    size: FloatArray  # of each copy, bytes; negative for those that go
    before: NDArray[np.int32]  # another copy of the same entry, -1 = none
    n_copies: IntArray  # (1,)
    start_s: FloatArray  # of each op in the replay
    end_s: FloatArray  # of each op in the replay
    freed: FloatArray  # of each op in the replay, bytes that are not held any more from its end on
    event: NDArray[np.int32]  # copies by time, as `envs.simulator.memory.find_events` numbers events


@kernel
def entry_at(x, time_s, entry):
    """Finds the entry at a time, from an entry nearby.

    Args:
        x: `Spans`.
        time_s: seconds.
        entry: index, int.
    """
    while entry + 1 < len(x.held) and x.since_s[entry + 1] <= time_s:
        entry += 1
    while entry > 0 and x.since_s[entry] > time_s:
        entry -= 1
    return entry


@kernel
def replay(s, x, entry):
    """Finds the greatest number of bytes that the device holds during an entry.

    Args:
        s: `Ledger` with all notes.
        x: `Spans`; the scratch is written.
        entry: index, int.
    """
    begin, end = s.parts.op_ptr[x.list_of[entry]], s.parts.op_ptr[x.list_of[entry] + 1]
    time_ops(s, x, entry, begin, end)
    column = freed_column(s, x.microbatch[entry]) if s.parts.varies[x.list_of[entry]] else 0
    held, n_events = x.held[entry], 0
    for at in range(end - begin):
        x.freed[at] = s.parts.freed[column, begin + at]
    copy, n_copies = x.copy[entry], x.n_copies[0]
    while copy >= 0:
        x.event[n_events] = 2 * copy + (x.size[copy] < 0.0)
        n_events, copy = n_events + 1, x.before[copy]
    for row in x.sent:
        if is_own_row(s, row):
            held += keep_until_sent(s, x, entry, row, begin)
    for copy in range(n_copies, x.n_copies[0]):
        x.event[n_events] = 2 * copy + 1
        n_events += 1
    x.n_copies[0] = n_copies
    sort_events(Holdings(x.time_s, x.time_s, x.size, x.before), x.event, n_events)
    return most_held(s, x, entry, begin, end, held, n_events)


@kernel
def most_held(s, x, entry, begin, end, held, n_events):
    """Goes through what begins and ends to be held during an entry, by time.

    Args:
        s: `Ledger` with all notes.
        x: `Spans` with the replay of the entry.
        entry: index, int.
        begin, end: first place of its list, and of the next one, int.
        held: bytes at the begin.
        n_events: copies that come and go, int.

    Returns:
        The most bytes between two instants.
    """
    most, now, k, n_ops = 0.0, x.since_s[entry], 0, end - begin
    for at in range(2 * n_ops + 1):
        op, is_end = at // 2, at % 2
        until = np.inf if op == n_ops else x.end_s[op] if is_end else x.start_s[op]
        while k < n_events and x.time_s[x.event[k] >> 1] < until:
            copy = x.event[k] >> 1
            if x.time_s[copy] > now:
                most, now = max(most, held), x.time_s[copy]
            held += x.size[copy]
            k += 1
        if now < until < np.inf:
            most, now = max(most, held), until
        if op < n_ops:
            held += -x.freed[op] if is_end else s.parts.taken[begin + op]
    is_last = entry + 1 == len(x.held)
    return max(most, held) if is_last or now < x.since_s[entry + 1] * (1 - 1e-12) else most


@kernel
def keep_until_sent(s, x, entry, row, begin):
    """Holds a tensor that an op of an entry frees, but that is not sent then, until it is.

    Args:
        s: `Ledger` with all notes.
        x: `Spans` with the times of the ops; `freed` and copies are written.
        entry: index, int.
        row: of the tensor in the part, int.
        begin: first place of the entry's list, int.

    Returns:
        Bytes held from the begin of the entry, of tensors that no op needs.
    """
    tensor = s.parts.row_wire[row] // 2
    first, end, microbatch, held = first_column(s, tensor), s.end, x.microbatch[entry], 0.0
    if entry and microbatch <= end:
        first, end = max(first, microbatch), microbatch
    for column in range(first, end + 1):
        place, home, until = held_until(s, row, column)
        if home != entry or until <= (x.end_s[place - begin] if place >= 0 else x.since_s[entry]):
            continue
        if place >= 0:
            x.freed[place - begin] -= s.p.size[tensor]
        else:
            held += s.p.size[tensor]
        if entry_at(x, until, entry) == entry:
            x.time_s[x.n_copies[0]], x.size[x.n_copies[0]] = until, -s.p.size[tensor]
            x.n_copies[0] += 1
    return held


@kernel
def time_ops(s, x, entry, begin, end):
    """Finds when each op of an entry runs.

    Args:
        s: `Ledger`.
        x: `Spans`; `start_s` and `end_s` are written, and when sums are ready.
        entry: index, int.
        begin, end: first place of its list, and of the next one, int.
    """
    p, q, parts, at_all = s.p, s.q, s.parts, s.agenda.ptr[s.device] + entry
    free, host, microbatch = x.since_s[entry], s.tables.host_s[at_all], min(x.microbatch[entry], s.end)
    step, last = parts.step_ptr[x.list_of[entry]], parts.step_ptr[x.list_of[entry] + 1]
    for place in range(begin, end):
        op = parts.op[place]
        while step < last and (parts.code[step] != RECEIVE or parts.reader[step] == place):
            if parts.code[step] == RECEIVE:
                slot = s.links.slot[s.device] + parts.number[step]
                column = 0 if s.links.code[slot] == RECEIVE_ONCE else microbatch
                free = max(free, s.tables.arrival_s[slot, column])
                if p.detailed is not None and s.tables.issuer[slot, column] == at_all:
                    s.tables.issuer[slot, column] = -1  # once for an entry, which is replayed once
                    host += p.gaps[NEXT_ISSUE_S]
            step += 1
        seconds = p.op_seconds[op, s.device]
        if seconds > 0.0:
            free = max(free, host + p.gaps[ISSUE_S])
            host += p.gaps[NEXT_ISSUE_S]
        x.start_s[place - begin], x.end_s[place - begin] = free, free + seconds
        free += seconds + (p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0)
        for tensor in p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]:
            if not q.is_gradient[tensor]:
                continue
            added, row = q.accumulate_s[tensor, s.device], s.links.row_of[2 * tensor + 1]
            if s.agenda.column[at_all] == LATER and added > 0.0:
                free = max(free, host + p.gaps[ISSUE_S]) + added + p.gaps[OP_GAP_S]
                host += p.gaps[NEXT_ISSUE_S]
            if row >= 0:  # to the last bit that of the ops that follow
                s.tables.ready_s[row, microbatch] = free - (p.gaps[OP_GAP_S] if added > 0.0 else 0.0)
