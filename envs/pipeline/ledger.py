"""Kernels that note which op of a device begins and ends to hold how many bytes in a pipelined step.

Every microbatch holds the same tensors from the same op to the same op, so this is noted once. What differs
by microbatch is when copies arrive and when those sent have left: `envs.pipeline.memory` adds these.

In all kernels here `s` is the `Ledger` of a device, and `tensor` an index.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.pipeline.arrays import OPTIMIZER_PHASE, ActionLayout, Agenda, PipelineArrays, Replicas, Tables
from envs.problem_arrays import ProblemArrays
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

IS_FIRST, IS_LAST = 1, 2
"""Bits of a column of `Ledger.freed`: the microbatch is the first, the last one of the device."""


class Ledger(NamedTuple):
    """A simulated step, and what the ops of one of its devices begin and end to hold."""

    p: ProblemArrays
    q: PipelineArrays
    device_of: IntArray  # (n_ops,)
    replicas: Replicas
    agenda: Agenda
    layout: ActionLayout
    tables: Tables
    sent_s: FloatArray  # (n_rows, n_microbatches) end of the last copy of a tensor, `UNSET` if there is none
    tensor_of: IntArray  # (n_rows,) tensor of a row
    list_of: NDArray[np.int32]  # (n_ops,) list of an op
    order: NDArray[np.int32]  # (n_ops,) place of an op among those of its device, -1 = it does not run
    entry_of: NDArray[np.int32]  # (n_lists, n_microbatches) entry of the device that runs a list
    last: NDArray[np.int32]  # (n_tensors,) last op where the tensor is made that needs it, -1 = none
    update: NDArray[np.int32]  # (n_tensors,) last update there that reads it too, -1 = none
    taken: FloatArray  # (n_ops,) bytes that begin to be held at the start of an op
    freed: FloatArray  # (n_ops, 4) bytes held until its end; columns: sums of `IS_FIRST` and `IS_LAST`
    kept: FloatArray  # (n_ops,) bytes of these that may be held longer, as others read them
    later: FloatArray  # (n_ops, 4) most bytes that its list adds from its start on
    left_s: FloatArray  # (n_ops,) least seconds from its start to the end of its list
    device: int
    home: int  # first device of its stage
    number: int  # its first microbatch
    n_replicas: int  # of its stage
    end: int  # last microbatch of the step


@kernel
def last_column(s):
    """Returns the last microbatch of the device."""
    return s.end - (s.end - s.number) % s.n_replicas


@kernel
def first_column(s, tensor):
    """Returns the first microbatch in which the device makes a tensor; of a parameter, the last one."""
    maker = s.p.producer[tensor]
    if s.q.phase[maker] == OPTIMIZER_PHASE:
        return s.end
    return last_column(s) if s.q.is_parameter[maker] else s.number


@kernel
def freed_column(s, microbatch):
    """Returns the column of `Ledger.freed` for a microbatch, or for the updates, which come after all."""
    if microbatch > s.end:
        return 0
    return IS_FIRST * (microbatch == s.number) + IS_LAST * (microbatch == last_column(s))


@kernel
def number_ops(s):
    """Numbers the ops of the device in the order in which it runs them in each microbatch."""
    n, begin = 0, s.agenda.ptr[s.device]
    for entry in range(begin, s.agenda.ptr[s.device + 1]):
        each, microbatch = s.layout.list_of[s.agenda.action[entry]], s.agenda.microbatch[entry]
        if microbatch > s.end:
            s.entry_of[each] = entry - begin
        else:
            s.entry_of[each, microbatch] = entry - begin
        if microbatch == s.number or microbatch > s.end:
            for op in s.layout.ops[s.layout.ptr[each] : s.layout.ptr[each + 1]]:
                s.order[op], s.list_of[op] = n, each
                n += 1


@kernel
def note_ops(s, ops, crossing):
    """Notes what the device holds of what it makes.

    Args:
        s: `Ledger` with the order of ops; written.
        ops: on the device, int64.
        crossing: tensors that other devices read; written.

    Returns:
        Bytes held from the start, and the number of tensors that other devices read.
    """
    held, n = 0.0, 0
    for op in ops:
        s.taken[op] = s.kept[op] = 0.0
        s.freed[op] = 0.0
    for op in ops:
        held += s.p.resident[op]
        for tensor in s.p.output_item[s.p.output_ptr[op] : s.p.output_ptr[op + 1]]:
            if is_held(s, tensor):
                held += note_own(s, tensor)
                if s.layout.row_of[tensor] >= 0 or s.layout.sum_row_of[tensor] >= 0:
                    crossing[n] = tensor
                    n += 1
                    for last in (s.last[tensor], s.update[tensor]):
                        if last >= 0:
                            s.kept[last] += s.p.size[tensor]
    return held, n


@kernel
def note_rows(s, crossing, n):
    """Notes what the device holds of what it receives.

    Args:
        s: `Ledger` with the order of ops; written.
        crossing: the rows are written behind the first `n`.
        n: int.

    Returns:
        Length of `crossing`.
    """
    for row in range(len(s.tensor_of)):
        tensor = s.tensor_of[row]
        if s.layout.slot_of[row, s.device] >= 0 and is_held(s, tensor):
            note_received(s, tensor, row == s.layout.sum_row_of[tensor])
            crossing[n] = row
            n += 1
    return n


@kernel
def is_held(s, tensor):
    """Says whether a tensor has bytes besides those that ops of the device hold for the whole step."""
    owner = s.p.owner[tensor]
    return s.p.size[tensor] > 0.0 and (owner < 0 or s.device_of[owner] != s.home)


@kernel
def note_own(s, tensor):
    """Notes from which to which op the device holds what it makes; returns bytes held from the start."""
    maker, size = s.p.producer[tensor], s.p.size[tensor]
    last, update = last_readers(s, tensor)
    if s.q.phase[maker] == OPTIMIZER_PHASE:
        last, update = max(update, maker), -1
    elif not s.p.is_source[maker] and (last < 0 or s.order[maker] > s.order[last]):
        last = maker
    s.last[tensor], s.update[tensor] = last, update
    note_freed(s, tensor, last, update, True)
    if not s.p.is_source[maker]:
        s.taken[maker] += size
        return 0.0
    if last < 0 or s.q.is_parameter[maker]:
        return size if max(last, update) >= 0 else 0.0
    return size * ((s.end - s.number) // s.n_replicas + 1)


@kernel
def note_received(s, tensor, is_sum):
    """Notes at which op the device does not hold the copy of a tensor any more.

    Args:
        s: `Ledger`; written.
        tensor: index, int.
        is_sum: whether it is the sum of a gradient, bool.
    """
    last, update = last_readers(s, tensor)
    if s.q.is_gradient[tensor]:
        last, update = (-1, update) if is_sum else (last, -1)
    note_freed(s, tensor, last, update, last_column(s) == s.end)


@kernel
def last_readers(s, tensor):
    """Finds the last ops of the device that read a tensor, before the updates and of them; -1 = none."""
    last = update = -1
    for reader in s.p.consumer_item[s.p.consumer_ptr[tensor] : s.p.consumer_ptr[tensor + 1]]:
        if s.device_of[reader] != s.home:
            continue
        if s.q.phase[reader] == OPTIMIZER_PHASE:
            update = max(update, reader)
        elif last < 0 or s.order[reader] > s.order[last]:
            last = reader
    return last, update


@kernel
def note_freed(s, tensor, last, update, is_kept):
    """Notes at which op a tensor is not held any more.

    Args:
        s: `Ledger`; written.
        tensor, last, update: indices, int; -1 = there is no such op.
        is_kept: whether an update reads the instance of the last microbatch, bool.
    """
    for column in range(4):
        if s.q.is_parameter[s.p.producer[tensor]]:
            is_freed = column & IS_LAST and update < 0
        elif s.q.is_gradient[tensor]:
            is_freed = update < 0 or not column & IS_FIRST
        else:
            is_freed = update < 0 or not is_kept or not column & IS_LAST
        if last >= 0 and is_freed:
            s.freed[last, column] += s.p.size[tensor]
    if update >= 0:
        s.freed[update, 0] += s.p.size[tensor]


@kernel
def held_until(s, tensor, column):
    """Finds how long the device holds a tensor of its own, which others read, in a microbatch.

    Args:
        s: `Ledger` with the notes of the tensor.
        tensor, column: indices, int; the column is that of the microbatch.

    Returns:
        The op until whose end it is held in any case, -1 = none; the entry that runs it, the first one if
        there is none; and the time until which it is held besides, seconds.
    """
    row, sum_row = s.layout.row_of[tensor], s.layout.sum_row_of[tensor]
    op, update, until = s.last[tensor], s.update[tensor], 0.0
    sent = 0 if s.q.is_parameter[s.p.producer[tensor]] else column
    if row >= 0 and sent % s.n_replicas == s.number:
        until = s.sent_s[row, sent]
    if not s.q.is_gradient[tensor]:
        op = update if update >= 0 and column == last_column(s) else op
    elif column == s.number:
        op = update if update >= 0 else op
        until = max(until, s.tables.reduced_s[s.home])
        if sum_row >= 0 and s.end % s.n_replicas == s.number:
            until = max(until, s.sent_s[sum_row, s.end])
    elif sum_row >= 0:
        until = max(until, s.tables.ready_s[sum_row, column])
    return op, s.entry_of[s.list_of[op], column] if op >= 0 else np.int32(0), until
