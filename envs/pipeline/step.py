"""Kernels that run the programs of all devices and microbatches: the pipelined step.

Each device goes through its actions until it needs a tensor that is not made yet. Its copies depend on no
other device than the sender, as links carry them in the receiver's order; so devices may be taken in any
sequence.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.pipeline.arrays import (
    LISTS,
    N_KINDS,
    RECEIVE,
    RECEIVE_ONCE,
    ROWS,
    RUN,
    SEND,
    SLOTS,
    UNSET,
    Links,
    Tables,
)
from envs.pipeline.layout import list_number, number_stages
from envs.pipeline.memory import pipeline_memory
from envs.pipeline.programs import make_parts
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, TRANSFER_GAP_S
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

STUCK, FULL = -1.0, -2.0
"""In place of a step time: devices wait for each other; there is no room for the parts."""


class Clocks(NamedTuple):
    """The progress of each device; seconds, (n_devices,) each."""

    free_s: FloatArray  # when it can start the next op
    end_s: FloatArray  # end of its last op
    host_s: FloatArray  # when its host thread is free
    entry: IntArray  # entry of the agenda at hand
    step: IntArray  # step of the entry's program at hand, -1 = not begun


@kernel(entry=True, allocates=True)
def run_pipeline(p, q, runs, placed, splits, n_microbatches, agenda, until_s, peak, parts, part_of):
    """Simulates a pipelined step.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        placed: `PlacedStages`.
        splits: whether each stage computes gradients of weights in actions of their own, bool (n_stages,).
        n_microbatches: int.
        agenda: `Agenda`; the times are written.
        until_s: longest step whose memory is found, seconds.
        peak: bytes, (n_devices,); raised to the most that each device holds; (0,) where nobody asks.
        parts: `Parts`; written.
        part_of: part of each device; new ones have the next numbers, int64 (n_devices,).

    Returns:
        Step time in seconds, `STUCK` where devices wait for each other, `FULL` where `parts` has no room.
    """
    local, n_stages = number_stages(placed.device, len(p.memory))
    if not make_parts(p, q, runs, placed, local, n_stages, splits, parts, part_of):
        return FULL
    links = link(p, q, placed, local, n_stages, parts, part_of)
    total_s, tables = run_programs(p, links, parts, n_microbatches, agenda)
    if len(peak) and STUCK < total_s <= until_s:
        pipeline_memory(p, q, runs, placed.device_of, agenda, parts, links, tables, peak)
    return total_s


@kernel(allocates=True)
def link(p, q, placed, local, n_stages, parts, part_of):
    """Links the parts of all devices.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        placed: `PlacedStages`.
        local: which stage of its device each one is, int64 (n_stages,).
        n_stages: stages of each device, int64 (n_devices,).
        parts: `Parts`.
        part_of: part of each device, int64 (n_devices,).

    Returns:
        `Links`.
    """
    n_devices, n_in_stages = len(part_of), len(placed.device) * N_KINDS
    list_of, sizes = np.empty(n_in_stages + n_devices, np.int64), np.zeros((2, n_devices + 1), np.int64)
    for device in range(n_devices):
        part = part_of[device]
        list_of[n_in_stages + device] = parts.begin[part, LISTS] + N_KINDS * n_stages[device]
        n_rows = parts.begin[part + 1, ROWS] - parts.begin[part, ROWS]
        sizes[0, device + 1] = sizes[0, device] + n_rows
        sizes[1, device + 1] = sizes[1, device] + parts.begin[part + 1, SLOTS] - parts.begin[part, SLOTS]
    for action in range(n_in_stages):
        stage, kind = divmod(action, N_KINDS)
        device = placed.device[stage]
        number = list_number(n_stages[device], local[stage], kind)
        list_of[action] = parts.begin[part_of[device], LISTS] + number
    row, slot, n_slots = sizes[0], sizes[1], sizes[1, -1]
    row_of, numbers = np.full(2 * len(p.producer), -1, np.int32), np.empty((2, n_slots), np.int32)
    wire = np.empty(sizes[0, -1], np.int32)
    for device in range(n_devices):
        first = parts.begin[part_of[device], ROWS]
        for at in range(row[device], row[device + 1]):
            wire[at] = parts.row_wire[first + at - row[device]]
            row_of[wire[at]] = at
    code, seconds = np.empty(n_slots, np.int8), np.empty(n_slots)
    for device in range(n_devices):
        first = parts.begin[part_of[device], SLOTS]
        for at in range(slot[device], slot[device + 1]):
            tensor, is_sum = divmod(parts.slot_wire[first + at - slot[device]], 2)
            source = placed.device_of[p.producer[tensor]]
            numbers[0, at], numbers[1, at] = row_of[2 * tensor + is_sum], source
            code[at] = RECEIVE_ONCE if q.is_parameter[p.producer[tensor]] else RECEIVE
            seconds[at] = (p.size[tensor] + p.n_half[source, device]) / p.bandwidth[source, device]
    return Links(part_of, list_of, row, slot, row_of, wire, numbers[0], numbers[1], code, seconds)


@kernel(allocates=True)
def run_programs(p, links, parts, n_microbatches, agenda):
    """Runs the programs of all devices.

    Args:
        p: `ProblemArrays`.
        links: `Links`.
        parts: `Parts`.
        n_microbatches: int.
        agenda: `Agenda`; the times are written.

    Returns:
        Step time in seconds, or `STUCK`, and `Tables`.
    """
    n_devices, n_slots = len(p.memory), len(links.seconds)
    ready_s = np.full((len(links.wire), n_microbatches), UNSET)
    for row in range(len(links.wire)):
        if p.is_source[p.producer[links.wire[row] // 2]]:
            ready_s[row] = 0.0
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
    left, moved = n_devices, True
    while moved and left:
        moved, left = False, 0
        for device in range(n_devices):
            moved |= advance_device(p, agenda, links, parts, device, clocks, free, tables)
            left += clocks.entry[device] < agenda.ptr[device + 1]
    return STUCK if left else clocks.end_s.max(), tables


@kernel
def advance_device(p, agenda, links, parts, device, clocks, free, tables):
    """Runs the programs of a device until it is through or a tensor is not made yet.

    Args:
        p: `ProblemArrays`.
        agenda: `Agenda`; the times are written.
        links: `Links`.
        parts: `Parts`.
        device: index, int.
        clocks: `Clocks`; written.
        free: when each link is free, seconds, by its clock; written.
        tables: `Tables`; written.

    Returns:
        Whether it got any further, bool.
    """
    moved = False
    last = tables.ready_s.shape[1] - 1
    while clocks.entry[device] < agenda.ptr[device + 1]:
        entry = clocks.entry[device]
        each, at = links.list_of[agenda.action[entry]], min(agenda.microbatch[entry], last)
        step = clocks.step[device]
        if step < 0:
            step = parts.step_ptr[each]
            agenda.start_s[entry] = UNSET
            tables.free_s[entry], tables.host_s[entry] = clocks.free_s[device], clocks.host_s[device]
        while step < parts.step_ptr[each + 1]:
            if not take_step(p, agenda, links, parts, device, entry, step, at, clocks, free, tables):
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
def take_step(p, agenda, links, parts, device, entry, step, at, clocks, free, tables):
    """Takes one step of a program.

    Args:
        p: `ProblemArrays`.
        agenda: `Agenda`; the start of the entry is written.
        links: `Links`.
        parts: `Parts`.
        device, entry, step: indices, int.
        at: column of the microbatch in the tables, int.
        clocks, free, tables: as of `advance_device`; written.

    Returns:
        Whether the step could be taken, bool; if not, its tensor is not made yet.
    """
    code, column = parts.code[step], agenda.column[entry]
    if code == RUN:
        start = clocks.free_s[device]
        end = start + parts.seconds[step, column]
        if p.detailed is not None:
            least = clocks.host_s[device] + parts.issue_s[step, column]
            if least > end:
                start += least - end
                end = least
            clocks.host_s[device] += parts.issued[step, column] * p.gaps[NEXT_ISSUE_S]
        if agenda.start_s[entry] == UNSET:
            agenda.start_s[entry] = start
        clocks.free_s[device] = end
        clocks.end_s[device] = max(clocks.end_s[device], end - parts.rest_s[step, column])
        return True
    if code == SEND:
        row = links.row[device] + parts.number[step]
        tables.ready_s[row, at] = clocks.free_s[device] - parts.rest_s[step, column]
        return True
    slot = links.slot[device] + parts.number[step]
    if links.code[slot] == RECEIVE_ONCE:
        at = 0
    if tables.arrival_s[slot, at] == UNSET:
        source, seconds = links.source[slot], links.seconds[slot]
        start = tables.ready_s[links.row_from[slot], at]
        if start == UNSET:
            return False
        clock = p.link[source, device]
        if clock >= 0:
            start = max(start, free[clock])
        if p.detailed is not None:
            start = max(start, clocks.host_s[device] + p.gaps[ISSUE_S])
            clocks.host_s[device] += p.gaps[NEXT_ISSUE_S]
            tables.issuer[slot, at] = entry
        end = start + seconds
        if clock >= 0:
            free[clock] = end + p.gaps[TRANSFER_GAP_S]
        tables.sent_s[slot, at] = end
        tables.arrival_s[slot, at] = end + p.latency[source, device]
    clocks.free_s[device] = max(clocks.free_s[device], tables.arrival_s[slot, at])
    return True
