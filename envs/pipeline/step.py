"""Kernels that run the programs of all devices and microbatches: the pipelined step.

Each device goes through its actions until it needs a tensor that is not made yet. A link carries its copies
in the order of one device, that of the receiver or, on an egress bus, of the sender; so devices may be taken
in any sequence.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `runs` a `SecondRuns`, `placed` a
`PlacedStages` and `programs` a `Steps`. Kernels write the times of `agenda`, an `Agenda`, and of `sums`, a
`Sums`; `clocks`, a `Clocks`; `tables`, a `Tables`; and `free`: when each link is free, seconds, by its clock.
`n_microbatches` is a number, `device` an index, `entry` one of the agenda, `step` one of a program, `row`
that of a tensor, and `batch` the column of a microbatch in the tables, all int.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.pipeline.arrays import DONE, FROM, RECEIVE_ONCE, RUN, SEND, UNSET, Tables
from envs.pipeline.layout import make_layout
from envs.pipeline.memory import pipeline_memory
from envs.pipeline.programs import NOBODY, ROWS, SLOTS, make_programs
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, SENDS_PER_TENSOR, TRANSFER_GAP_S
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

STUCK = -1.0
"""In place of a step time: devices wait for each other."""


class Clocks(NamedTuple):
    """The progress of each device; seconds, (n_devices,) each."""

    free_s: FloatArray  # when it can start the next op
    end_s: FloatArray  # end of its last op
    host_s: FloatArray  # when its host thread is free
    entry: IntArray  # entry of the agenda at hand
    step: IntArray  # step of the entry's program at hand, -1 = not begun


@kernel(entry=True, allocates=True)
def run_pipeline(p, q, runs, placed, n_microbatches, agenda, sums, until_s, peak, curve, list_of):
    """Simulates a pipelined step.

    Args:
        until_s: longest step whose memory is found, seconds.
        peak: bytes, (n_devices,); raised to the most that each device holds; (0,) where nobody asks.
        curve: bytes, (n_devices, n_parts); raised to the most held in each part of the step;
            (n_devices, 0) where nobody asks.
        list_of: -1, int32 (n_ops,); written: list of each op that takes part.

    Returns:
        Step time in seconds, `STUCK` where devices wait for each other.
    """
    layout = make_layout(p, q, runs, placed, agenda, list_of)
    programs = make_programs(p, q, runs, placed, agenda, layout, sums)
    total_s, tables = run_programs(p, q, programs, n_microbatches, agenda, sums)
    if total_s > STUCK:
        total_s = max(total_s, sums.least_s)
    if len(peak) and STUCK < total_s <= until_s:
        pipeline_memory(
            p, q, runs, placed, agenda, layout, programs, tables, sums.times_s, total_s, peak, curve
        )
    return total_s


@kernel(allocates=True)
def run_programs(p, q, programs, n_microbatches, agenda, sums):
    """Runs the programs of all devices.

    Returns:
        Step time in seconds, or `STUCK`, and `Tables`.
    """
    n_devices, n_rows, n_slots = len(p.memory), programs.n[ROWS], programs.n[SLOTS]
    ready_s = np.full((n_rows, n_microbatches), UNSET)
    sent_s, arrival_s = np.full((n_slots, n_microbatches), UNSET), np.full((n_slots, n_microbatches), UNSET)
    of_entries, issuer = np.empty((2, len(agenda.action))), np.empty(arrival_s.shape, np.int32)
    tables = Tables(ready_s, sent_s, arrival_s, of_entries[0], of_entries[1], issuer)
    clocks = Clocks(
        np.zeros(n_devices),
        np.zeros(n_devices),
        np.zeros(n_devices),
        agenda.ptr[:-1].copy(),
        np.full(n_devices, -1),
    )
    free = np.zeros(p.link.max() + 2)
    for row in range(n_rows):
        if p.is_source[p.producer[programs.row_wire[row] // 2]]:
            ready_s[row] = 0.0
    if q.is_egress:
        issuer[:] = -1
        queue_sources(p, q, programs, clocks, free, tables)
    left, moved = n_devices, True
    while moved and left:
        moved, left = False, 0
        for device in range(n_devices):
            moved |= advance_device(p, agenda, programs, sums, device, clocks, free, tables)
            left += clocks.entry[device] < agenda.ptr[device + 1]
    return STUCK if left else clocks.end_s.max(), tables


@kernel
def advance_device(p, agenda, programs, sums, device, clocks, free, tables):
    """Runs the programs of a device until it is through or a tensor is not made yet.

    Returns:
        Whether it got any further, bool.
    """
    moved = False
    last = tables.ready_s.shape[1] - 1
    while clocks.entry[device] < agenda.ptr[device + 1]:
        entry = clocks.entry[device]
        list_, batch = agenda.list_of[agenda.action[entry]], min(agenda.microbatch[entry], last)
        step = clocks.step[device]
        if step < 0:
            step = programs.step_ptr[list_]
            agenda.start_s[entry] = UNSET
            if len(sums.begin_s) and agenda.microbatch[entry] > last:
                clocks.free_s[device] = max(clocks.free_s[device], sums.begin_s[device])
            tables.free_s[entry], tables.host_s[entry] = clocks.free_s[device], clocks.host_s[device]
        while step < programs.step_ptr[list_ + 1]:
            if not take_step(p, agenda, programs, sums, device, entry, step, batch, clocks, free, tables):
                clocks.step[device] = step
                return moved
            step += 1
            moved = True
        agenda.end_s[entry] = clocks.end_s[device]
        if agenda.start_s[entry] == UNSET:
            agenda.start_s[entry] = clocks.end_s[device]
        clocks.entry[device] = entry + 1
        clocks.step[device] = -1
        moved = True
    return moved


@kernel(inline=True)
def take_step(p, agenda, programs, sums, device, entry, step, batch, clocks, free, tables):
    """Takes one step of a program.

    Returns:
        Whether the step could be taken, bool; if not, its tensor is not made yet.
    """
    code, column = programs.code[step], agenda.column[entry]
    if code == RUN:
        start = clocks.free_s[device]
        end = start + programs.seconds[step, column]
        if p.detailed is not None:
            least = clocks.host_s[device] + programs.issue_s[step, column]
            if least > end:
                start += least - end
                end = least
            clocks.host_s[device] += programs.issued[step, column] * p.gaps[NEXT_ISSUE_S]
        if agenda.start_s[entry] == UNSET:
            agenda.start_s[entry] = start
        clocks.free_s[device] = end
        clocks.end_s[device] = max(clocks.end_s[device], end - programs.rest_s[step, column])
        return True
    if code == SEND:
        row, made_s = programs.number[step], clocks.free_s[device] - programs.rest_s[step, column]
        if row < 0:
            sums.times_s[DONE, NOBODY - 1 - row] = made_s
            return True
        last, tensor = tables.ready_s.shape[1] - 1, programs.row_wire[row] // 2
        is_sum = batch == last and programs.row_wire[row] % 2 == 1 and tensor < len(sums.is_summed)
        if is_sum and sums.is_summed[tensor] and agenda.microbatch[entry] <= last:  # queued with the updates
            tables.ready_s[row, batch] = max(made_s, sums.times_s[FROM, tensor])
            return True
        if not is_sum or not sums.is_summed[tensor]:
            tables.ready_s[row, batch] = made_s
        if len(programs.first_slot):
            queue_copies(p, programs, row, batch, entry, clocks, free, tables)
        return True
    slot = programs.number[step]
    if slot < 0:
        clocks.free_s[device] = max(clocks.free_s[device], sums.times_s[FROM, NOBODY - 1 - slot])
        return True
    if code == RECEIVE_ONCE:
        batch = 0
    if tables.arrival_s[slot, batch] == UNSET:
        ready_s = tables.ready_s[programs.row_of[programs.slot_wire[slot]], batch]
        if ready_s == UNSET or len(programs.first_slot):  # or its sender has yet to queue it
            return False
        source = programs.source[slot]
        if p.detailed is not None:
            tables.issuer[slot, batch] = entry
        end = copy_end_s(p, programs, slot, ready_s, source, device, device, clocks, free)
        tables.sent_s[slot, batch] = end
        tables.arrival_s[slot, batch] = end + p.latency[source, device]
    clocks.free_s[device] = max(clocks.free_s[device], tables.arrival_s[slot, batch])
    return True


@kernel
def queue_sources(p, q, programs, clocks, free, tables):
    """Sends what exists at time 0, microbatch by microbatch."""
    for batch in range(tables.ready_s.shape[1]):
        for row in range(programs.n[ROWS]):
            maker = p.producer[programs.row_wire[row] // 2]
            if p.is_source[maker] and (batch == 0 or not q.is_parameter[maker]):
                queue_copies(p, programs, row, batch, -1, clocks, free, tables)


@kernel(inline=True)
def queue_copies(p, programs, row, batch, entry, clocks, free, tables):
    """Sends a tensor to all devices that read it, if the sender queues its copies."""
    slot, end = programs.first_slot[row], UNSET
    while slot >= 0:
        if programs.at_end[slot] and batch < tables.ready_s.shape[1] - 1:
            slot = programs.next_slot[slot]
            continue
        source, target = programs.source[slot], programs.target[slot]
        if end == UNSET or not p.rules[SENDS_PER_TENSOR]:
            ready_s = tables.ready_s[row, batch]
            end = copy_end_s(p, programs, slot, ready_s, source, target, source, clocks, free)
            tables.issuer[slot, batch] = entry
        tables.sent_s[slot, batch] = end
        tables.arrival_s[slot, batch] = end + p.latency[source, target]
        slot = programs.next_slot[slot]


@kernel(inline=True)
def copy_end_s(p, programs, slot, start, source, target, issuer, clocks, free):
    """Occupies the link of a copy and the host thread that issues it.

    Args:
        slot: slot of the copy, int.
        start: when the tensor is ready, seconds.
        source, target: devices, int.
        issuer: device of the host thread, int.

    Returns:
        When the copy ends, seconds.
    """
    clock = p.link[source, target]
    if clock >= 0:
        start = max(start, free[clock])
    if p.detailed is not None:
        start = max(start, clocks.host_s[issuer] + p.gaps[ISSUE_S])
        clocks.host_s[issuer] += p.gaps[NEXT_ISSUE_S]
    end = start + programs.transfer_s[slot]
    if clock >= 0:
        free[clock] = end + p.gaps[TRANSFER_GAP_S]
    return end
