"""Kernels that find the greatest number of bytes that each device holds in a pipelined step.

Ops begin and end to hold the same bytes in every microbatch, so the bytes held before each action, and the
most that it can hold, are sums of what `envs.pipeline.ledger` notes, once for each part. Copies come and go
in between. Only actions that may hold more than was found so far are replayed, which are few.

A gradient whose update is on another device is summed where it is made: the first one holds the sum until
that is sent, and each other one is held until it is added. At one instant, holdings end before others begin.

In all kernels here `s` is the `Ledger` of a device, and `x` its `Spans`.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import LISTS, ROWS, SLOTS, UNSET
from envs.pipeline.ledger import (
    Ledger,
    first_column,
    freed_column,
    held_until,
    is_held,
    is_own_row,
    note_entries,
    note_part,
)
from envs.pipeline.memory_replay import Spans, entry_at, replay
from graphs.system.jit import kernel


@kernel(allocates=True)
def pipeline_memory(p, q, runs, device_of, agenda, parts, links, tables, peak):
    """Finds the greatest number of bytes held at once on each device.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        device_of: device of each op, int64 (n_first_ops,).
        agenda: `Agenda`.
        parts: `Parts`; the ledgers of parts without one are written.
        links: `Links`.
        tables: `Tables` of the finished simulation.
        peak: bytes, (n_devices,); raised to those held where these are more.
    """
    sent_s, end, n_lists = np.full(tables.ready_s.shape, UNSET), tables.ready_s.shape[1] - 1, 0
    for slot in range(len(links.seconds)):
        row = links.row_from[slot]
        for column in range(end + 1):
            sent_s[row, column] = max(sent_s[row, column], tables.sent_s[slot, column])
    for part in links.part_of:
        n_lists = max(n_lists, parts.begin[part + 1, LISTS] - parts.begin[part, LISTS])
    entry_of = np.empty((n_lists, end + 1), np.int32)
    for device in range(len(peak)):
        s = Ledger(
            p, q, runs, device_of, agenda, parts, links, tables, sent_s, entry_of,
            device, links.part_of[device], end,
        )  # fmt: skip
        note_entries(s)
        if np.isnan(parts.held[s.part]):
            note_part(s)
        peak[device] = max(peak[device], raised_peak(s, peak[device]))


@kernel(allocates=True)
def raised_peak(s, peak):
    """Returns the most bytes that the device holds at once, or less than `peak` where these are less.

    Args:
        s: `Ledger`; `later` and `left_s` are written.
        peak: bytes.
    """
    parts, entries = s.parts, slice(s.agenda.ptr[s.device], s.agenda.ptr[s.device + 1])
    row, slot = parts.begin[s.part, ROWS], parts.begin[s.part, SLOTS]
    own = np.arange(row, parts.begin[s.part + 1, ROWS])
    n_slots = parts.begin[s.part + 1, SLOTS] - slot
    n_copies = 2 * (len(own) + n_slots) * (s.end + 1)
    since_s, list_of = s.tables.free_s[entries], s.links.list_of[s.agenda.action[entries]]
    longest = 0
    for each in range(parts.begin[s.part, LISTS], parts.begin[s.part + 1, LISTS] - 1):
        longest = max(longest, parts.op_ptr[each + 1] - parts.op_ptr[each])
    of_entries, of_ops = np.zeros((3, len(since_s))), np.empty((3, longest))
    of_copies, numbers = np.empty((2, n_copies)), np.empty((2, n_copies), np.int32)
    x = Spans(
        since_s, s.agenda.microbatch[entries], list_of,
        of_entries[0], of_entries[1], np.full(len(since_s), np.inf), of_entries[2],
        np.full(len(since_s), -1, np.int32), own,
        of_copies[0], of_copies[1], numbers[0], np.zeros(1, np.int64),
        of_ops[0], of_ops[1], of_ops[2], numbers[1],
    )  # fmt: skip
    for at in own:
        if is_own_row(s, at):
            add_sent(s, x, at)
    for at in range(n_slots):
        tensor = parts.slot_wire[slot + at] // 2
        if is_held(s, tensor):
            add_received(s, x, s.links.slot[s.device] + at, s.p.size[tensor])
    find_bounds(s, x)
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
def add_received(s, x, slot, size):
    """Adds the arrivals of a tensor.

    Args:
        s: `Ledger`.
        x: `Spans`; `most`, `change` and copies are written.
        slot: index, int.
        size: bytes.
    """
    entry = 0
    for time_s in s.tables.arrival_s[slot]:
        if time_s >= 0.0:
            entry = entry_at(x, time_s, entry)
            x.most[entry] += size
            x.since_copy_s[entry] = min(x.since_copy_s[entry], time_s)
            add_copy(x, entry, time_s, size)


@kernel
def add_sent(s, x, row):
    """Adds the instants at which a tensor has been sent that the device does not need any more.

    Args:
        s: `Ledger`.
        x: `Spans`; `most`, `change` and copies are written.
        row: of the tensor in the part, int.
    """
    tensor = s.parts.row_wire[row] // 2
    entry, size = 0, s.p.size[tensor]
    for column in range(first_column(s, tensor), s.end + 1):
        place, home, until = held_until(s, row, column)
        if until > x.since_s[home]:
            entry = entry_at(x, until, entry)
            if place < 0:
                x.most[home] += size
                x.since_copy_s[home] = 0.0
            if entry > home:
                x.change[home] += size
                add_copy(x, entry, until, -size)


@kernel
def find_bounds(s, x):
    """Finds the bytes held before each entry, and at most during it.

    What the first copy adds during an entry counts from the earliest op on that may run then.

    Args:
        s: `Ledger`.
        x: `Spans`, with the copies; `held` and `most` are written.
    """
    parts, held = s.parts, s.parts.held[s.part]
    for entry in range(len(x.held)):
        each = x.list_of[entry]
        column = freed_column(s, x.microbatch[entry]) if parts.varies[each] else 0
        begin, end = parts.op_ptr[each], parts.op_ptr[each + 1]
        if np.isnan(parts.added[each, column]):
            parts.added[each, column] = profile(s, begin, end, column)
        first, high = begin, end if x.most[entry] > 0.0 else begin
        until = x.since_s[entry + 1] if entry + 1 < len(x.held) else np.inf
        while first < high:
            middle = (first + high) // 2
            if parts.left_s[middle] * (1 - 1e-9) > until - x.since_copy_s[entry]:
                first = middle + 1
            else:
                high = middle
        most = parts.later[column, max(first - 1, begin)] if end > begin else 0.0
        x.held[entry] = held
        x.most[entry] = held + max(most + x.most[entry], parts.later[column, begin] if end > begin else 0.0)
        held += x.change[entry] + parts.added[each, column]


@kernel
def profile(s, begin, end, column):
    """Finds the most bytes that a list adds from each op on, and its least seconds.

    Args:
        s: `Ledger`; `later` and `left_s` are written.
        begin, end: first place of the list, and of the next one, int.
        column: of `Parts.freed`, int.

    Returns:
        Bytes that it adds in all.
    """
    parts = s.parts
    now = added = most = left_s = 0.0
    for place in range(begin, end):
        now += parts.taken[place]
        parts.later[column, place] = now
        now -= parts.freed[column, place] - parts.kept[place]
        added += parts.taken[place] - parts.freed[column, place]
    for place in range(end - 1, begin - 1, -1):
        most, left_s = (
            max(most, parts.later[column, place]),
            left_s + s.p.op_seconds[parts.op[place], s.device],
        )
        parts.later[column, place], parts.left_s[place] = most, left_s
    return added
