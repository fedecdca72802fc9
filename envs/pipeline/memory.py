"""Kernels that find the greatest number of bytes that each device holds in a pipelined step.

Holdings are those of a step, once for each microbatch, so they are found device by device: the times of its
ops follow from the arrivals of what it receives. A gradient whose update is on another device is summed where
it is made: the first one holds the sum until that is sent, and each other one is held until it is added.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import OPTIMIZER_PHASE
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from envs.simulator.memory import Holdings, add_held
from graphs.system.jit import kernel


@kernel(entry=True, allocates=True)
def pipeline_memory(p, q, device_of, agenda, layout, tables, total_s, peak):
    """Finds the greatest number of bytes held at once on each device.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_ops,).
        agenda: `Agenda`.
        layout: `ActionLayout`.
        tables: `Tables` of the finished simulation.
        total_s: step time, seconds.
        peak: bytes, (n_devices,); written.
    """
    n_microbatches = tables.ready_s.shape[1]
    local = np.full(len(device_of), -1, np.int32)
    for device in range(len(peak)):
        n_local, n_tensors = 0, 0
        resident = 0.0
        for op in range(len(device_of)):
            if device_of[op] == device:
                local[op] = n_local
                n_local += 1
                n_tensors += p.output_ptr[op + 1] - p.output_ptr[op]
                resident += p.resident[op]
        for row in range(len(layout.slot_of)):
            n_tensors += layout.slot_of[row, device] >= 0
        start_s = np.zeros((n_local, n_microbatches))
        end_s = np.zeros((n_local, n_microbatches))
        replay(p, q, device_of, agenda, layout, tables, device, local, start_s, end_s)
        amounts = np.empty((3, n_tensors * n_microbatches + 1))
        h = Holdings(amounts[0], amounts[1], amounts[2], np.zeros(amounts.shape[1], np.int32))
        n = find_held(p, q, device_of, layout, tables, device, local, start_s, end_s, h)
        most = np.full(1, resident)
        add_held(h, n, 2 * n_local * n_microbatches + 2, total_s, most)
        peak[device] = most[0]


@kernel(allocates=True)
def replay(p, q, device_of, agenda, layout, tables, device, local, start_s, end_s):
    """Finds when each op of a device runs in each microbatch.

    Args:
        p, q, device_of, agenda, layout, tables: as of `pipeline_memory`.
        device: index, int.
        local: row of each op of the device in the tables to write, int32 (n_ops,).
        start_s, end_s: seconds, (n_local, n_microbatches); written. Updates have the last column.
    """
    free = host = 0.0
    last = start_s.shape[1] - 1
    is_issued = np.zeros(tables.arrival_s.shape, np.uint8)
    for entry in range(agenda.ptr[device], agenda.ptr[device + 1]):
        action, microbatch = agenda.action[entry], min(agenda.microbatch[entry], last)
        for at in range(layout.action_ptr[action], layout.action_ptr[action + 1]):
            op = layout.ops[at]
            start = free
            for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
                tensor = p.input_item[k]
                maker = p.producer[tensor]
                if device_of[maker] == device:
                    continue
                is_sum = q.is_gradient[tensor] and q.phase[op] == OPTIMIZER_PHASE
                row = layout.sum_row_of[tensor] if is_sum else layout.row_of[tensor]
                slot, column = layout.slot_of[row, device], 0 if q.is_parameter[maker] else microbatch
                start = max(start, tables.arrival_s[slot, column])
                if not is_issued[slot, column]:
                    is_issued[slot, column] = 1
                    host += p.gaps[NEXT_ISSUE_S]
            seconds = p.op_seconds[op, device]
            if seconds > 0.0:
                start = max(start, host + p.gaps[ISSUE_S])
                host += p.gaps[NEXT_ISSUE_S]
            start_s[local[op], microbatch] = start
            end_s[local[op], microbatch] = start + seconds
            free = start + seconds + (p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0)
            for k in range(p.output_ptr[op], p.output_ptr[op + 1]):
                added = q.accumulate_s[p.output_item[k], device]
                if q.is_gradient[p.output_item[k]] and microbatch and added > 0.0:
                    free = max(free, host + p.gaps[ISSUE_S]) + added + p.gaps[OP_GAP_S]
                    host += p.gaps[NEXT_ISSUE_S]


@kernel
def find_held(p, q, device_of, layout, tables, device, local, start_s, end_s, h):
    """Finds what a device holds for a part of the step.

    Args:
        p, q, device_of, layout, tables: as of `pipeline_memory`.
        device: index, int.
        local: row of each op of the device in the tables, int32 (n_ops,).
        start_s, end_s: of the ops of the device, seconds, (n_local, n_microbatches).
        h: `Holdings` of device 0; written.

    Returns:
        Number of holdings.
    """
    n = 0
    for tensor in range(len(p.producer)):
        maker, owner = p.producer[tensor], p.owner[tensor]
        is_here = device_of[maker] == device
        if p.size[tensor] == 0.0 or (owner >= 0 and device_of[owner] == device):
            continue
        row, sum_row = layout.row_of[tensor], layout.sum_row_of[tensor]
        if is_here:
            n = hold_own(p, q, device_of, layout, tables, device, tensor, local, start_s, end_s, h, n)
            continue
        if row >= 0 and layout.slot_of[row, device] >= 0:
            slot, columns = layout.slot_of[row, device], tables.arrival_s.shape[1]
            for column in range(1 if q.is_parameter[maker] else columns):
                if tables.arrival_s[slot, column] >= 0.0:
                    until = last_use_s(p, q, device_of, device, tensor, column, False, local, end_s)
                    n = hold(h, n, tables.arrival_s[slot, column], until, p.size[tensor])
        if sum_row >= 0 and layout.slot_of[sum_row, device] >= 0:
            slot, last = layout.slot_of[sum_row, device], tables.arrival_s.shape[1] - 1
            until = last_use_s(p, q, device_of, device, tensor, last, True, local, end_s)
            n = hold(h, n, tables.arrival_s[slot, last], until, p.size[tensor])
    return n


@kernel
def hold_own(p, q, device_of, layout, tables, device, tensor, local, start_s, end_s, h, n):
    """Finds how long a device holds a tensor that it makes, in each microbatch.

    Args:
        p, q, device_of, layout, tables, device, local, start_s, end_s, h: as of `find_held`.
        tensor: index, int.
        n: number of holdings so far, int.

    Returns:
        Number of holdings.
    """
    maker = p.producer[tensor]
    row, sum_row = layout.row_of[tensor], layout.sum_row_of[tensor]
    last = end_s.shape[1] - 1
    once = q.is_parameter[maker] or q.phase[maker] == OPTIMIZER_PHASE
    for column in range(last + 1):
        at = last if q.phase[maker] == OPTIMIZER_PHASE else column
        since = start_s[local[maker], at]
        until = max(
            end_s[local[maker], at], last_use_s(p, q, device_of, device, tensor, at, False, local, end_s)
        )
        if row >= 0:
            until = max(until, last_sent_s(layout, tables, row, 0 if q.is_parameter[maker] else at))
        if sum_row >= 0 and column:
            until = max(until, tables.ready_s[sum_row, column])
        if q.is_gradient[tensor] and not column:
            until = max(until, last_use_s(p, q, device_of, device, tensor, last, True, local, end_s))
            if sum_row >= 0:
                until = max(until, last_sent_s(layout, tables, sum_row, last))
        n = hold(h, n, since, until, p.size[tensor])
        if once:
            break
    return n


@kernel
def hold(h, n, since, until, size):
    """Adds a holding.

    Args:
        h: `Holdings`; written.
        n: number of holdings so far, int.
        since, until: seconds.
        size: bytes.

    Returns:
        Number of holdings.
    """
    h.since[n], h.until[n], h.size[n] = since, until, size
    return n + 1


@kernel
def last_use_s(p, q, device_of, device, tensor, column, of_sum, local, end_s):
    """Finds the end of the last op on a device that reads a tensor of a microbatch.

    Args:
        p, q, device_of, device, local, end_s: as of `find_held`.
        tensor, column: indices, int; a parameter is read in all microbatches.
        of_sum: whether the sum of a gradient is asked for, which updates read, bool.

    Returns:
        Seconds; 0 if none reads it.
    """
    found = 0.0
    maker, last = p.producer[tensor], end_s.shape[1] - 1
    for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        reader = p.consumer_item[j]
        is_update = q.phase[reader] == OPTIMIZER_PHASE
        if device_of[reader] != device or (q.is_gradient[tensor] and is_update != of_sum):
            continue
        if is_update:
            found = max(found, end_s[local[reader], last] if column == last or q.is_parameter[maker] else 0.0)
        elif q.is_parameter[maker]:
            for each in range(last + 1):
                found = max(found, end_s[local[reader], each])
        else:
            found = max(found, end_s[local[reader], column])
    return found


@kernel
def last_sent_s(layout, tables, row, column):
    """Finds the end of the last copy of a tensor of a microbatch to any device.

    Args:
        layout: `ActionLayout`.
        tables: `Tables`.
        row, column: indices, int.

    Returns:
        Seconds; 0 if it is not sent.
    """
    found = 0.0
    for device in range(layout.slot_of.shape[1]):
        slot = layout.slot_of[row, device]
        if slot >= 0:
            found = max(found, tables.sent_s[slot, column])
    return found
