"""Kernels that find the greatest number of bytes that each device holds in a pipelined step.

Ops begin and end to hold the same bytes in every microbatch, so the bytes held before each action, and the
most that it can hold, are sums of what `envs.pipeline.ledger` notes, once for all replicas of a stage. Copies
come and go in between. Only actions that may hold more than was found so far are replayed, which are few.

A gradient whose update is on another device is summed where it is made: the first one holds the sum until
that is sent, and each other one is held until it is added. At one instant, holdings end before others begin.

In all kernels here `s` is the `Ledger` of a device, and `x` its `Spans`.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import UNSET
from envs.pipeline.layout import sort_by_list
from envs.pipeline.ledger import (
    Ledger,
    first_column,
    freed_column,
    held_until,
    last_column,
    note_ops,
    note_rows,
    number_ops,
)
from envs.pipeline.memory_replay import Spans, entry_at, replay
from graphs.system.jit import kernel


@kernel(allocates=True)
def pipeline_memory(p, q, device_of, replicas, agenda, layout, tables, peak):
    """Finds the greatest number of bytes held at once on each device.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, the first one of its stage, int64 (n_ops,).
        replicas: `Replicas`.
        agenda: `Agenda`.
        layout: `ActionLayout`.
        tables: `Tables` of the finished simulation.
        peak: bytes, (n_devices,); raised to those held where these are more.
    """
    sent_s, tensor_of = np.full(tables.ready_s.shape, UNSET), np.empty(len(tables.ready_s), np.int64)
    for tensor in range(len(p.producer)):
        for row in (layout.row_of[tensor], layout.sum_row_of[tensor]):
            if row >= 0:
                tensor_of[row] = tensor
    for row in range(len(sent_s)):
        for device in range(len(peak)):
            if layout.slot_of[row, device] >= 0:
                sent_s[row] = np.maximum(sent_s[row], tables.sent_s[layout.slot_of[row, device]])
    ptr, ops = sort_by_list(device_of, len(peak))
    end, n_lists = sent_s.shape[1] - 1, len(layout.ptr) - 1
    of_ops, of_tensors = np.full((2, len(device_of)), -1, np.int32), np.empty((2, len(p.producer)), np.int32)
    entry_of = np.empty((n_lists, end + 1), np.int32)
    amounts, by_column = np.zeros((3, len(device_of))), np.zeros((2, len(device_of), 4))
    crossing, added = np.empty(2 * len(sent_s), np.int32), np.empty((n_lists, 4))
    for home in range(len(peak)):
        noted, held, n_own, n_crossing, count = -1, 0.0, 0, 0, replicas.n_replicas[home]
        for number in range(count if replicas.head[home] == home else 0):
            device, mine = replicas.member[home, number], ops[ptr[home] : ptr[home + 1]]
            s = Ledger(
                p, q, device_of, replicas, agenda, layout, tables, sent_s, tensor_of,
                of_ops[0], of_ops[1], entry_of, of_tensors[0], of_tensors[1],
                amounts[0], by_column[0], amounts[1], by_column[1], amounts[2],
                device, home, number, count, end,
            )  # fmt: skip
            number_ops(s)
            if not is_noted(s, mine, noted):
                noted, added[:] = device, np.nan
                held, n_own = note_ops(s, mine, crossing)
                n_crossing = note_rows(s, crossing, n_own)
            most = raised_peak(
                s, mine, held, added, crossing[:n_own], crossing[n_own:n_crossing], peak[device]
            )
            peak[device] = max(peak[device], most)


@kernel
def is_noted(s, ops, noted):
    """Says whether what was noted for another replica, if any, holds for the device.

    Args:
        s: `Ledger`.
        ops: on the device, int64.
        noted: device of the other replica, -1 = none.
    """
    if noted < 0:
        return False
    other = s.replicas.number[noted]
    rounds, others = (s.end - s.number) // s.n_replicas, (s.end - other) // s.n_replicas
    same = rounds == others and (last_column(s) == s.end) == (other + others * s.n_replicas == s.end)
    for op in ops:
        same = same and s.p.op_seconds[op, s.device] == s.p.op_seconds[op, noted]
    return same


@kernel(allocates=True)
def raised_peak(s, ops, held, added, own, rows, peak):
    """Returns the most bytes that the device holds at once, or less than `peak` where these are less.

    Args:
        s: `Ledger` with all notes; `later` and `left_s` are written.
        ops: on the device, int64.
        held: bytes held from the start.
        added: as of `find_bounds`; written.
        own: tensors of the device that others read, int32.
        rows: of what it receives, int32.
        peak: bytes.
    """
    entries = slice(s.agenda.ptr[s.device], s.agenda.ptr[s.device + 1])
    n_copies = 2 * (len(own) + len(rows)) * (s.end + 1)
    since_s = s.tables.free_s[entries]
    of_entries, of_ops = np.zeros((3, len(since_s))), np.empty((3, len(ops)))
    of_copies, numbers = np.empty((2, n_copies)), np.empty((2, n_copies), np.int32)
    x = Spans(
        since_s, s.agenda.microbatch[entries], s.layout.list_of[s.agenda.action[entries]],
        of_entries[0], of_entries[1], np.full(len(since_s), np.inf), of_entries[2],
        np.full(len(since_s), -1, np.int32), own,
        of_copies[0], of_copies[1], numbers[0], np.zeros(1, np.int64),
        of_ops[0], of_ops[1], of_ops[2], numbers[1],
    )  # fmt: skip
    for tensor in own:
        add_sent(s, x, tensor)
    for row in rows:
        add_received(s, x, row)
    find_bounds(s, x, held, added)
    highest = x.most.argmax()
    for entry in range(-1, len(x.held)):
        at = highest if entry < 0 else entry
        if x.most[at] > peak:
            x.most[at] = 0.0
            peak = max(peak, replay(s, x, at))
    return peak


@kernel
def add_copy(x, entry, time_s, size):
    """Adds a copy that comes or goes.

    Args:
        x: `Spans`; `change` and copies are written.
        entry: in which that is, int.
        time_s: seconds.
        size: bytes, negative for one that goes.
    """
    n = x.n_copies[0]
    x.time_s[n], x.size[n], x.before[n] = time_s, size, x.copy[entry]
    x.n_copies[0], x.copy[entry] = n + 1, n
    x.change[entry] += size


@kernel
def add_received(s, x, row):
    """Adds the arrivals of a tensor.

    Args:
        s: `Ledger`.
        x: `Spans`; `most`, `change` and copies are written.
        row: index, int.
    """
    entry, size = 0, s.p.size[s.tensor_of[row]]
    for time_s in s.tables.arrival_s[s.layout.slot_of[row, s.device]]:
        if time_s >= 0.0:
            entry = entry_at(x, time_s, entry)
            x.most[entry] += size
            x.since_copy_s[entry] = min(x.since_copy_s[entry], time_s)
            add_copy(x, entry, time_s, size)


@kernel
def add_sent(s, x, tensor):
    """Adds the instants at which a tensor has been sent that the device does not need any more.

    Args:
        s: `Ledger` with the notes of the tensor.
        x: `Spans`; `most`, `change` and copies are written.
        tensor: index, int.
    """
    entry, size = 0, s.p.size[tensor]
    for column in range(first_column(s, tensor), s.end + 1, s.n_replicas):
        op, home, until = held_until(s, tensor, column)
        if until > x.since_s[home]:
            entry = entry_at(x, until, entry)
            if op < 0:
                x.most[home] += size
                x.since_copy_s[home] = 0.0
            if entry > home:
                x.change[home] += size
                add_copy(x, entry, until, -size)


@kernel
def find_bounds(s, x, held, added):
    """Finds the bytes held before each entry, and at most during it.

    What the first copy adds during an entry counts from the earliest op on that may run then.

    Args:
        s: `Ledger` with all notes.
        x: `Spans`, with the copies; `held` and `most` are written.
        held: bytes held from the start.
        added: bytes that a list adds, for each column of `Ledger.freed`, (n_lists, 4); NaN where not known;
            written.
    """
    for entry in range(len(x.held)):
        each, column = x.list_of[entry], freed_column(s, x.microbatch[entry])
        ops = s.layout.ops[s.layout.ptr[each] : s.layout.ptr[each + 1]]
        if np.isnan(added[each, column]):
            added[each, column] = profile(s, ops, column)
        first, high = 0, len(ops) if x.most[entry] > 0.0 else 0
        until = x.since_s[entry + 1] if entry + 1 < len(x.held) else np.inf
        while first < high:
            middle = (first + high) // 2
            if s.left_s[ops[middle]] * (1 - 1e-9) > until - x.since_copy_s[entry]:
                first = middle + 1
            else:
                high = middle
        most = s.later[ops[max(first - 1, 0)], column] if len(ops) else 0.0
        x.held[entry] = held
        x.most[entry] = held + max(most + x.most[entry], s.later[ops[0], column] if len(ops) else 0.0)
        held += x.change[entry] + added[each, column]


@kernel
def profile(s, ops, column):
    """Finds the most bytes that a list adds from each op on, and its least seconds.

    Args:
        s: `Ledger` with all notes; `later` and `left_s` are written.
        ops: of the list, int64.
        column: of `Ledger.freed`, int.

    Returns:
        Bytes that it adds in all.
    """
    now = added = most = left_s = 0.0
    for op in ops:
        now += s.taken[op]
        s.later[op, column] = now
        now -= s.freed[op, column] - s.kept[op]
        added += s.taken[op] - s.freed[op, column]
    for op in ops[::-1]:
        most, left_s = max(most, s.later[op, column]), left_s + s.p.op_seconds[op, s.device]
        s.later[op, column], s.left_s[op] = most, left_s
    return added
