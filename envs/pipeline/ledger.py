"""Kernels that note what the ops of a device begin and end to hold in a pipelined step.

Every microbatch holds the same tensors from the same op to the same op, so this is noted once. In between
copies come, and tensors leave that others have read.

A gradient whose update is on another device is summed where it is made: the first one holds the sum until
that is sent, and each other one is held until it is added.

In all kernels here `s` is the `Ledger` of a device, which they write. `tensor` is an index, `place` that of
an op in its `OpLists`, -1 = none, and `column` a row of `Ledger.freed`, all int; `sent_s` is the end of the
last copy of each tensor, seconds, (n_rows, n_microbatches).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import (
    DONE,
    OPTIMIZER_PHASE,
    Agenda,
    OpLists,
    PipelineArrays,
    SecondRuns,
    Steps,
    Tables,
)
from envs.pipeline.programs import reads, tensor_read
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

IS_FIRST, IS_LAST = 1, 2
"""Bits of a row of `Ledger.freed`: the microbatch is the first, the last one. Updates have row 0."""
LAST, UPDATE = range(2)
"""Rows of `Ledger.reader`."""
ROUNDING = 1e-12
"""Relative error of sums of the same seconds in another order."""
NOW, HELD, MOST = range(3)
"""Columns of `Ledger.state`: seconds of the last change, bytes held now, and most between two instants."""


class Ledger(NamedTuple):
    """A simulated step, what the ops of a device begin and end to hold, and what changes between ops."""

    p: ProblemArrays
    q: PipelineArrays
    runs: SecondRuns
    device_of: IntArray  # (n_first_ops,)
    stage_of: IntArray  # (n_first_ops,)
    agenda: Agenda
    layout: OpLists
    programs: Steps
    tables: Tables
    device: int
    end: int  # last microbatch of the step
    reader: NDArray[np.int32]  # (2, n_tensors) place of the last reader but updates, and of the last update
    taken: FloatArray  # (n_places,) bytes that begin to be held at the start of an op
    freed: FloatArray  # (4, n_places) bytes held until its end
    sent: NDArray[np.int32]  # (n_places,) first tensor that may be held longer, as others read it
    next: NDArray[np.int32]  # (2 * n_tensors,) next one; both as `2 * tensor + LAST` or `UPDATE`, -1 = none
    event_of: NDArray[np.int32]  # (n_tensors,) first event of a tensor that others read, one a microbatch
    time_s: FloatArray  # (n_events,) when a copy comes, or a tensor has been sent
    change: FloatArray  # (n_events,) bytes, 0 where the device does not end to hold the tensor then
    n: IntArray  # (2,) events that there are, and that have happened
    state: FloatArray  # (3,) columns `NOW`, `HELD` and `MOST`
    kept: FloatArray  # (n_places,) bytes of `freed` that may be held longer
    rise: FloatArray  # (n_lists, 4) most bytes that the ops of a list may hold more than before it
    change_of: FloatArray  # (n_lists, 4) bytes that its ops hold more after it
    curve: FloatArray  # (n_parts,) most bytes held in each part of the step; (0,) = nobody asks
    total_s: float  # step time
    times_s: FloatArray  # as of `Sums`


@kernel
def note_ops(s, sent_s):
    """Notes what the ops of the device begin and end to hold."""
    begin, after = s.agenda.first[s.device], s.agenda.first[s.device + 1]
    s.reader[:] = -1
    for list_ in range(begin, after - 1):
        row = UPDATE if list_ == after - 2 else LAST
        for place in range(s.layout.ptr[list_], s.layout.ptr[list_ + 1]):
            op = s.layout.op[place]
            for k in reads(s.p, s.runs, op):
                tensor = tensor_read(s.p, s.q, s.runs, s.stage_of, s.layout, op, s.p.input_item[k])
                s.reader[row, tensor] = place
    for place in range(s.layout.ptr[begin], s.layout.ptr[after]):
        op = s.layout.op[place]
        s.state[HELD] += s.p.resident[op]
        for tensor in s.p.output_item[s.p.output_ptr[op] : s.p.output_ptr[op + 1]]:
            if is_held(s, tensor):
                note_own(s, sent_s, place, tensor)


@kernel
def is_held(s, tensor):
    """Says whether a tensor has bytes besides those that ops of the device hold for the whole step."""
    owner = s.p.owner[tensor]
    return s.p.size[tensor] > 0.0 and (owner < 0 or s.device_of[owner] != s.device)


@kernel
def note_own(s, sent_s, place, tensor):
    """Notes from which to which op the device holds what it makes."""
    op, size = s.layout.op[place], s.p.size[tensor]
    last, update = s.reader[LAST, tensor], s.reader[UPDATE, tensor]
    if s.q.phase[op] == OPTIMIZER_PHASE:
        last, update = max(update, place), -1
    elif not s.p.is_source[op]:
        last = max(last, place)
    s.reader[LAST, tensor], s.reader[UPDATE, tensor] = last, update
    note_freed(s, tensor, last, update)
    is_sent = s.programs.row_of[2 * tensor] >= 0 or s.programs.row_of[2 * tensor + 1] >= 0
    if is_sent:
        note_sent(s, sent_s, tensor)
    if not s.p.is_source[op]:
        s.taken[place] += size
        return
    for column in range(s.end if s.q.is_parameter[op] else 0, s.end + 1):
        is_read = last >= 0 or (update >= 0 and column == s.end)
        if is_read or is_sent:
            s.state[HELD] += size
        if is_sent and not is_read:
            s.change[s.event_of[tensor] + column] = -size


@kernel
def note_sent(s, sent_s, tensor):
    """Notes when a tensor has been sent."""
    row, sum_row = s.programs.row_of[2 * tensor], s.programs.row_of[2 * tensor + 1]
    is_parameter = s.q.is_parameter[s.p.producer[tensor]]
    s.event_of[tensor] = s.n[0]
    for column in range(s.end + 1):
        until_s = sent_s[row, 0 if is_parameter else column] if row >= 0 else 0.0
        if sum_row >= 0:
            added_s = s.tables.ready_s[sum_row, column]
            if s.times_s.shape[1]:
                added_s = min(added_s, s.times_s[DONE, tensor])
            until_s = max(until_s, (1 - ROUNDING) * added_s if column else sent_s[sum_row, s.end])
        add_event(s, until_s, 0.0)
    for row in (LAST, UPDATE):
        place, node = s.reader[row, tensor], 2 * tensor + row
        if place >= 0:
            s.next[node], s.sent[place] = s.sent[place], node
            s.kept[place] += s.p.size[tensor]


@kernel
def add_event(s, time_s, change):
    """Adds an instant at which the bytes that the device holds change between ops.

    Args:
        time_s: seconds.
        change: bytes.
    """
    s.time_s[s.n[0]], s.change[s.n[0]] = time_s, change
    s.n[0] += 1


@kernel
def note_copies(s):
    """Notes when copies come, and which ops of the device end to hold them; writes the `Ledger`."""
    for slot in range(s.programs.slot_ptr[s.device], s.programs.slot_ptr[s.device + 1]):
        tensor, is_sum = divmod(s.programs.slot_wire[slot], 2)
        last, update = s.reader[LAST, tensor], s.reader[UPDATE, tensor]
        if s.q.is_gradient[tensor]:
            last, update = (-1, update) if is_sum else (last, -1)
        if is_held(s, tensor):
            note_freed(s, tensor, last, update)
            for arrival_s in s.tables.arrival_s[slot]:
                if arrival_s >= 0.0:
                    add_event(s, arrival_s, s.p.size[tensor])


@kernel
def note_freed(s, tensor, last, update):
    """Notes at which op the device ends to hold a tensor.

    Args:
        last, update: places of its last reader but updates, and of the last update that reads it, int.
    """
    for column in range(4 if last >= 0 else 0):
        if is_freed(s, tensor, update, column):
            s.freed[column, last] += s.p.size[tensor]
    if update >= 0:
        s.freed[0, update] += s.p.size[tensor]


@kernel
def is_freed(s, tensor, update, column):
    """Says whether a tensor need not be held after its last reader but updates.

    Args:
        update: place of the last update that reads it, int.
    """
    if s.q.is_parameter[s.p.producer[tensor]]:
        return update < 0 and column & IS_LAST > 0
    return update < 0 or column & (IS_FIRST if s.q.is_gradient[tensor] else IS_LAST) == 0


@kernel
def note_lists(s):
    """Notes what the ops of each list hold more than before it at most, and after it."""
    for list_ in range(s.agenda.first[s.device], s.agenda.first[s.device + 1] - 1):
        for column in range(4):
            held = high = most = 0.0
            for place in range(s.layout.ptr[list_], s.layout.ptr[list_ + 1]):
                high += s.taken[place]
                most = max(most, high)
                high -= max(s.freed[column, place] - s.kept[place], 0.0)
                held += s.taken[place] - s.freed[column, place]
            s.rise[list_, column], s.change_of[list_, column] = most, held
