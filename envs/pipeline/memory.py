"""Kernels that find the greatest number of bytes that each device holds in a pipelined step.

Each device goes through its actions by time, and through the ops of those that may hold more than was found
so far. At one instant, holdings end before others begin.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `runs` a `SecondRuns`, `placed` a
`PlacedStages`, `agenda` an `Agenda`, `layout` an `OpLists`, `programs` a `Steps`, and `s` the `Ledger` of a
device, whose `state` and `curve` they write. `order` lists its events by time, int64 (n_events,). `op` is an
index, `place` that of an op in `OpLists`, `list_` a list, `entry` one of the agenda, `step` one of a program,
`microbatch` a column of the tables and `column` a row of `Ledger.freed`, all int. `free` and `host` say when
the device and its host thread are free, seconds.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import BACKWARD_PHASE, FROM, LATER, RECEIVE, RECEIVE_ONCE
from envs.pipeline.ledger import (
    HELD,
    IS_FIRST,
    IS_LAST,
    MOST,
    NOW,
    UPDATE,
    Ledger,
    is_freed,
    note_copies,
    note_lists,
    note_ops,
)
from envs.pipeline.programs import NOBODY, ROWS, SLOTS
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from envs.simulator.memory import raise_curve
from graphs.system.jit import kernel


@kernel(allocates=True)
def pipeline_memory(p, q, runs, placed, agenda, layout, programs, tables, times_s, total_s, peak, curve):
    """Finds the greatest number of bytes held at once on each device.

    Args:
        tables: `Tables` of the finished simulation.
        times_s: see `Sums`.
        total_s: step time, seconds.
        peak: bytes, (n_devices,); raised to those held where these are more.
        curve: bytes, (n_devices, n_parts); raised to the most held in each part of the step.
    """
    n_tensors, n_places, end = len(p.producer), len(layout.op), tables.ready_s.shape[1] - 1
    sent_s = np.zeros(tables.ready_s.shape)
    for slot in range(programs.n[SLOTS]):
        row = programs.row_of[programs.slot_wire[slot]]
        for column in range(end + 1):
            sent_s[row, column] = max(sent_s[row, column], tables.sent_s[slot, column])
    of_tensors, sent = np.empty((5, n_tensors), np.int32), np.full(n_places, -1, np.int32)
    of_places, of_lists = np.zeros((6, n_places)), np.zeros((2, len(layout.ptr) - 1, 4))
    events = np.empty((2, (programs.n[ROWS] + programs.n[SLOTS]) * (end + 1)))
    for device in range(len(peak)):
        s = Ledger(
            p=p,
            q=q,
            runs=runs,
            device_of=placed.device_of,
            stage_of=placed.stage_of,
            agenda=agenda,
            layout=layout,
            programs=programs,
            tables=tables,
            device=device,
            end=end,
            reader=of_tensors[:2],
            taken=of_places[0],
            freed=of_places[1:5],
            sent=sent,
            next=of_tensors[2:4].ravel(),
            event_of=of_tensors[4],
            time_s=events[0],
            change=events[1],
            n=np.zeros(2, np.int64),
            state=np.zeros(3),
            kept=of_places[5],
            rise=of_lists[0],
            change_of=of_lists[1],
            curve=curve[device],
            total_s=total_s,
            times_s=times_s,
        )
        s.state[MOST] = peak[device]
        note_ops(s, sent_s)
        note_copies(s)
        note_lists(s)
        run_device(s, np.argsort(s.time_s[: s.n[0]]))
        peak[device] = s.state[MOST]


@kernel
def run_device(s, order):
    """Goes through the actions of the device by time."""
    agenda, state = s.agenda, s.state
    after = agenda.ptr[s.device + 1]
    for entry in range(agenda.ptr[s.device], after):
        list_, microbatch = agenda.list_of[agenda.action[entry]], min(agenda.microbatch[entry], s.end)
        column = IS_FIRST * (microbatch == 0) + IS_LAST * (microbatch == s.end)
        if agenda.microbatch[entry] > s.end:
            column = 0
        until_s = s.tables.free_s[entry + 1] if entry + 1 < after else np.inf
        event, change, coming = s.n[1], 0.0, 0.0
        while event < s.n[0] and s.time_s[order[event]] < until_s:
            change += s.change[order[event]]
            coming += max(s.change[order[event]], 0.0)
            event += 1
        if len(s.curve) or state[HELD] + s.rise[list_, column] + coming > state[MOST]:
            run_ops(s, order, entry, list_, microbatch, column)
            continue
        s.n[1] = event
        state[NOW] = until_s
        state[HELD] += change + s.change_of[list_, column]
        for place in range(s.layout.ptr[list_], s.layout.ptr[list_ + 1]):
            if s.sent[place] >= 0:
                keep_sent(s, place, microbatch, column, until_s)
    advance(s, order, np.inf)


@kernel
def run_ops(s, order, entry, list_, microbatch, column):
    """Goes through the ops of an action by time."""
    p, layout, programs, state = s.p, s.layout, s.programs, s.state
    free, host = s.tables.free_s[entry], s.tables.host_s[entry]
    step, last_step = programs.step_ptr[list_], programs.step_ptr[list_ + 1]
    for place in range(layout.ptr[list_], layout.ptr[list_ + 1]):
        while step < last_step and (programs.code[step] < RECEIVE or programs.reader[step] == place):
            free, host = receive(s, entry, step, microbatch, free, host)
            step += 1
        seconds = p.op_seconds[layout.op[place], s.device]
        if seconds > 0.0:
            free = max(free, host + p.gaps[ISSUE_S])
            host += p.gaps[NEXT_ISSUE_S]
        advance(s, order, free)
        state[HELD] += s.taken[place]
        advance(s, order, free + seconds)
        state[HELD] -= s.freed[column, place]
        if s.sent[place] >= 0:
            keep_sent(s, place, microbatch, column, free + seconds)
        free += seconds + (p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0)
        if p.detailed is not None:
            for tensor in p.output_item[p.output_ptr[layout.op[place]] : p.output_ptr[layout.op[place] + 1]]:
                host += issued_s(s, entry, microbatch, 2 * tensor)
        if s.q.phase[layout.op[place]] == BACKWARD_PHASE:
            free, host = add_gradients(s, entry, layout.op[place], free, host)


@kernel
def advance(s, order, until_s):
    """Goes on to a time, through the events before it.

    Args:
        until_s: end, seconds.
    """
    state = s.state
    while s.n[1] < s.n[0] and s.time_s[order[s.n[1]]] < until_s:
        event = order[s.n[1]]
        if s.time_s[event] > state[NOW]:
            hold_until(s, s.time_s[event])
        state[HELD] += s.change[event]
        s.n[1] += 1
    if state[NOW] < until_s:
        hold_until(s, until_s)


@kernel
def hold_until(s, until_s):
    """Holds what is held now until a later time.

    Args:
        until_s: end, seconds.
    """
    state = s.state
    state[MOST] = max(state[MOST], state[HELD])
    if len(s.curve):
        raise_curve(s.curve, state[HELD], state[NOW], min(until_s, s.total_s), s.total_s)
    state[NOW] = until_s


@kernel
def receive(s, entry, step, microbatch, free, host):
    """Takes a step of a program, which may wait for a copy.

    Returns:
        The new `free` and `host`.
    """
    if s.programs.code[step] >= RECEIVE:
        slot = s.programs.number[step]
        if slot < 0:
            return max(free, s.times_s[FROM, NOBODY - 1 - slot]), host
        column = 0 if s.programs.code[step] == RECEIVE_ONCE else microbatch
        free = max(free, s.tables.arrival_s[slot, column])
        if s.p.detailed is not None and s.tables.issuer[slot, column] == entry:
            s.tables.issuer[slot, column] = -1
            host += s.p.gaps[NEXT_ISSUE_S]
    return free, host


@kernel
def keep_sent(s, place, microbatch, column, finish_s):
    """Holds tensors that an op frees, but that are not sent then, until they are.

    Args:
        finish_s: end of the op, seconds.
    """
    node = s.sent[place]
    while node >= 0:
        tensor, row = divmod(node, 2)
        if row == UPDATE or is_freed(s, tensor, s.reader[UPDATE, tensor], column):
            event = s.event_of[tensor] + (0 if row == UPDATE and s.q.is_gradient[tensor] else microbatch)
            if s.time_s[event] > finish_s:
                s.state[HELD] += s.p.size[tensor]
                s.change[event] = -s.p.size[tensor]
        node = s.next[node]


@kernel
def add_gradients(s, entry, op, free, host):
    """Adds the gradients that an op makes to their sums.

    Returns:
        The new `free` and `host`.
    """
    p = s.p
    for tensor in p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]:
        added = s.q.accumulate_s[tensor, s.device]
        if s.agenda.column[entry] == LATER and added > 0.0:
            free = max(free, host + p.gaps[ISSUE_S]) + added + p.gaps[OP_GAP_S]
            host += p.gaps[NEXT_ISSUE_S]
        host += issued_s(s, entry, s.end, 2 * tensor + 1)
    return free, host


@kernel
def issued_s(s, entry, microbatch, wire):
    """Finds how long the host thread of the device issues the copies of a wire that it queues.

    Args:
        wire: see `Steps`, int.

    Returns:
        Seconds.
    """
    programs, n = s.programs, 0
    row = programs.row_of[wire]
    slot = programs.first_slot[row] if row >= 0 and len(programs.first_slot) else -1
    while slot >= 0:
        n += s.tables.issuer[slot, microbatch] == entry
        slot = programs.next_slot[slot]
    return n * s.p.gaps[NEXT_ISSUE_S]
