"""Kernels that note which op of a device begins and ends to hold how many bytes in a pipelined step.

Every microbatch holds the same tensors from the same op to the same op, so this is noted once, in the part of
the device. What differs by microbatch is when copies arrive and when those sent have left:
`envs.pipeline.memory` adds these. An op is known by its place in the part; -1 = there is no such op.

In all kernels here `s` is the `Ledger` of a device.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import (
    LISTS,
    OPTIMIZER_PHASE,
    ROWS,
    SLOTS,
    Agenda,
    Links,
    Parts,
    PipelineArrays,
    SecondRuns,
    Tables,
)
from envs.pipeline.programs import mark_ops, reads, second_tensor
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

IS_FIRST, IS_LAST = 1, 2
"""Bits of a row of `Parts.freed`: the microbatch is the first, the last one of the device."""


class Ledger(NamedTuple):
    """A simulated step, and one of its devices."""

    p: ProblemArrays
    q: PipelineArrays
    runs: SecondRuns
    device_of: IntArray  # (n_first_ops,)
    agenda: Agenda
    parts: Parts
    links: Links
    tables: Tables
    sent_s: FloatArray  # (n_rows, n_microbatches) end of the last copy of a tensor, `UNSET` if there is none
    entry_of: NDArray[np.int32]  # (n_lists, n_microbatches) entry of the device that runs a list of its part
    device: int
    part: int
    end: int  # last microbatch of the step


@kernel
def first_column(s, tensor):
    """Returns the first microbatch in which the device makes a tensor; of a parameter, the last one."""
    maker = s.p.producer[tensor]
    return s.end if s.q.phase[maker] == OPTIMIZER_PHASE or s.q.is_parameter[maker] else 0


@kernel
def freed_column(s, microbatch):
    """Returns the row of `Parts.freed` for a microbatch, or for the updates, which come after all."""
    if microbatch > s.end:
        return 0
    return IS_FIRST * (microbatch == 0) + IS_LAST * (microbatch == s.end)


@kernel
def note_entries(s):
    """Notes which entry of the device runs which list in which microbatch."""
    begin, lists = s.agenda.ptr[s.device], s.parts.begin[s.part, LISTS]
    for entry in range(begin, s.agenda.ptr[s.device + 1]):
        each, microbatch = s.links.list_of[s.agenda.action[entry]] - lists, s.agenda.microbatch[entry]
        if microbatch > s.end:
            s.entry_of[each] = entry - begin
        else:
            s.entry_of[each, microbatch] = entry - begin


@kernel
def note_part(s):
    """Notes what the ops of the device's part begin and end to hold."""
    parts = s.parts
    begin, end = mark_ops(parts, s.part)
    lists = slice(parts.begin[s.part, LISTS], parts.begin[s.part + 1, LISTS])
    parts.varies[lists], parts.added[lists] = 0, np.nan
    find_readers(s, begin, end)
    held = 0.0
    for place in range(begin, end):
        op = parts.op[place]
        held += s.p.resident[op]
        for tensor in s.p.output_item[s.p.output_ptr[op] : s.p.output_ptr[op + 1]]:
            last, update = readers_of(s, tensor, begin, end)
            if is_held(s, tensor):
                held += note_own(s, place, tensor, last, update)
    for row in range(parts.begin[s.part, ROWS], parts.begin[s.part + 1, ROWS]):
        tensor = parts.row_wire[row] // 2
        parts.last[row], parts.update[row] = parts.readers[0, tensor], parts.readers[1, tensor]
        if is_own_row(s, row):
            for last in (parts.last[row], parts.update[row]):
                if last >= 0:
                    parts.kept[last] += s.p.size[tensor]
    for slot in range(parts.begin[s.part, SLOTS], parts.begin[s.part + 1, SLOTS]):
        tensor, is_sum = divmod(parts.slot_wire[slot], 2)
        last, update = readers_of(s, tensor, begin, end)
        if s.q.is_gradient[tensor]:
            last, update = (-1, update) if is_sum else (last, -1)
        if is_held(s, tensor):
            note_freed(s, tensor, last, update)
    parts.held[s.part] = held


@kernel
def find_readers(s, begin, end):
    """Finds the last ops of the part at hand that read a tensor, before the updates and of them.

    Args:
        s: `Ledger`; `readers` is written, and notes are cleared.
        begin, end: first place of the part, and of the next one, int.
    """
    parts = s.parts
    updates = parts.begin[s.part + 1, LISTS] - 2
    parts.taken[begin:end] = 0.0
    parts.kept[begin:end] = 0.0
    parts.freed[0, begin:end] = 0.0
    for place in range(begin, parts.op_ptr[updates + 1]):
        is_update = np.int64(parts.list_of[place] == updates)
        for k in reads(s.p, s.runs, parts.op[place]):
            tensor = s.p.input_item[k]
            if len(s.runs.op):
                tensor = second_tensor(s.p, s.q, s.runs, parts, s.part, place, tensor)
            parts.readers[is_update, tensor] = place


@kernel
def readers_of(s, tensor, begin, end):
    """Returns what was found for a tensor.

    Args:
        s: `Ledger`.
        tensor: index, int.
        begin, end: first place of the part, and of the next one, int.

    Returns:
        Places of its last reader before the updates, and of the last update that reads it; -1 = none.
    """
    last, update = s.parts.readers[0, tensor], s.parts.readers[1, tensor]
    return last if begin <= last < end else -1, update if begin <= update < end else -1


@kernel
def is_own_row(s, row):
    """Says whether a row is the first one of a tensor that is held."""
    wire = s.parts.row_wire[row]
    return is_held(s, wire // 2) and (wire % 2 == 0 or s.links.row_of[wire - 1] < 0)


@kernel
def is_held(s, tensor):
    """Says whether a tensor has bytes besides those that ops of the device hold for the whole step."""
    owner = s.p.owner[tensor]
    return s.p.size[tensor] > 0.0 and (owner < 0 or s.device_of[owner] != s.device)


@kernel
def note_own(s, maker, tensor, last, update):
    """Notes from which to which op the device holds what it makes.

    Args:
        s: `Ledger`; written.
        maker: place, int.
        tensor: index, int.
        last, update: places of its last readers, int.

    Returns:
        Bytes held from the start.
    """
    op, size = s.parts.op[maker], s.p.size[tensor]
    if s.q.phase[op] == OPTIMIZER_PHASE:
        last, update = max(update, maker), -1
    elif not s.p.is_source[op]:
        last = max(last, maker)
    s.parts.readers[0, tensor], s.parts.readers[1, tensor] = last, update
    note_freed(s, tensor, last, update)
    if not s.p.is_source[op]:
        s.parts.taken[maker] += size
        return 0.0
    if last < 0 or s.q.is_parameter[op]:
        return size if max(last, update) >= 0 else 0.0
    return size * (s.end + 1)


@kernel
def note_freed(s, tensor, last, update):
    """Notes at which op a tensor is not held any more.

    Args:
        s: `Ledger`; written.
        tensor: index, int.
        last, update: places of its last readers, int.
    """
    parts, size, is_parameter = s.parts, s.p.size[tensor], s.q.is_parameter[s.p.producer[tensor]]
    if last >= 0 and update < 0 and not is_parameter and not parts.varies[parts.list_of[last]]:
        parts.freed[0, last] += size
        return
    for column in range(4 if last >= 0 else 0):
        if is_parameter:
            is_freed = column & IS_LAST and update < 0
        elif s.q.is_gradient[tensor]:
            is_freed = update < 0 or not column & IS_FIRST
        else:
            is_freed = update < 0 or not column & IS_LAST
        vary(parts, parts.list_of[last])
        if is_freed:
            parts.freed[column, last] += size
    if update >= 0:
        parts.freed[0, update] += size


@kernel
def vary(parts, each):
    """Gives a list the columns of `Parts.freed`, unless it has them.

    Args:
        parts: `Parts`; written.
        each: list, int.
    """
    if not parts.varies[each]:
        parts.varies[each] = 1
        for place in range(parts.op_ptr[each], parts.op_ptr[each + 1]):
            for column in range(1, 4):
                parts.freed[column, place] = parts.freed[0, place]


@kernel
def held_until(s, row, column):
    """Finds how long the device holds a tensor of its own, which others read, in a microbatch.

    Args:
        s: `Ledger`.
        row: of the tensor in the part, int.
        column: the microbatch, int.

    Returns:
        The place until whose end it is held in any case, -1 = none; the entry that runs it, the first one if
        there is none; and the time until which it is held besides, seconds.
    """
    parts, tensor = s.parts, s.parts.row_wire[row] // 2
    sent_row, sum_row = s.links.row_of[2 * tensor], s.links.row_of[2 * tensor + 1]
    place, update, until = parts.last[row], parts.update[row], 0.0
    sent = 0 if s.q.is_parameter[s.p.producer[tensor]] else column
    if sent_row >= 0:
        until = s.sent_s[sent_row, sent]
    if not s.q.is_gradient[tensor]:
        place = update if update >= 0 and column == s.end else place
    elif column == 0:
        place = update if update >= 0 else place
        if sum_row >= 0:
            until = max(until, s.sent_s[sum_row, s.end])
    elif sum_row >= 0:
        until = max(until, s.tables.ready_s[sum_row, column])
    if place < 0:
        return place, np.int32(0), until
    each = parts.list_of[place] - parts.begin[s.part, LISTS]
    return place, s.entry_of[each, column], until
