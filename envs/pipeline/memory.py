"""Kernels that find the greatest number of bytes that each device holds in a pipelined step.

Holdings are those of a step, once for each microbatch, so they are found device by device: the times of its
ops follow from the arrivals of what it receives. A gradient whose update is on another device is summed where
it is made: the first one holds the sum until that is sent, and each other one is held until it is added.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import LATER, OPTIMIZER_PHASE
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S
from envs.simulator.memory import Holdings, add_held
from graphs.system.jit import kernel


@kernel(allocates=True)
def pipeline_memory(p, q, device_of, replicas, agenda, layout, tables, total_s, peak):
    """Finds the greatest number of bytes held at once on each device.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, the first one of its stage, int64 (n_ops,).
        replicas: `Replicas`.
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
            if device_of[op] == replicas.head[device]:
                local[op] = n_local
                n_local += 1
                n_tensors += p.output_ptr[op + 1] - p.output_ptr[op]
                resident += p.resident[op]
        for row in range(len(layout.slot_of)):
            n_tensors += layout.slot_of[row, device] >= 0
        start_s = np.zeros((n_local, n_microbatches))
        end_s = np.zeros((n_local, n_microbatches))
        replay(p, q, device_of, replicas, agenda, layout, tables, device, local, start_s, end_s)
        amounts = np.empty((3, n_tensors * n_microbatches + 1))
        h = Holdings(amounts[0], amounts[1], amounts[2], np.zeros(amounts.shape[1], np.int32))
        n = find_held(p, q, device_of, replicas, layout, tables, device, local, start_s, end_s, h)
        most = np.full(1, resident)
        add_held(h, n, 2 * n_local * n_microbatches + 2, total_s, most)
        peak[device] = most[0]


@kernel(allocates=True)
def replay(p, q, device_of, replicas, agenda, layout, tables, device, local, start_s, end_s):
    """Finds when each op of a device runs in each microbatch.

    Args:
        p, q, device_of, replicas, agenda, layout, tables: as of `pipeline_memory`.
        device: index, int.
        local: row of each op of the device in the tables to write, int32 (n_ops,).
        start_s, end_s: seconds, (n_local, n_microbatches); written. Updates have the last column.
    """
    free = host = 0.0
    last = start_s.shape[1] - 1
    home = replicas.head[device]
    is_issued = np.zeros(tables.arrival_s.shape, np.uint8)
    for entry in range(agenda.ptr[device], agenda.ptr[device + 1]):
        each, microbatch = layout.list_of[agenda.action[entry]], min(agenda.microbatch[entry], last)
        if agenda.microbatch[entry] > last and replicas.reduce_s[home] >= 0.0:
            free = tables.reduced_s[home]
        for at in range(layout.ptr[each], layout.ptr[each + 1]):
            op = layout.ops[at]
            start = free
            for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
                tensor = p.input_item[k]
                maker = p.producer[tensor]
                if device_of[maker] == home:
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
                if q.is_gradient[p.output_item[k]] and agenda.column[entry] == LATER and added > 0.0:
                    free = max(free, host + p.gaps[ISSUE_S]) + added + p.gaps[OP_GAP_S]
                    host += p.gaps[NEXT_ISSUE_S]


@kernel
def find_held(p, q, device_of, replicas, layout, tables, device, local, start_s, end_s, h):
    """Finds what a device holds for a part of the step.

    Args:
        p, q, device_of, replicas, layout, tables: as of `pipeline_memory`.
        device: index, int.
        local: row of each op of the device in the tables, int32 (n_ops,).
        start_s, end_s: of the ops of the device, seconds, (n_local, n_microbatches).
        h: `Holdings` of device 0; written.

    Returns:
        Number of holdings.
    """
    n, home = 0, replicas.head[device]
    for tensor in range(len(p.producer)):
        maker, owner = p.producer[tensor], p.owner[tensor]
        is_here = device_of[maker] == home
        if p.size[tensor] == 0.0 or (owner >= 0 and device_of[owner] == home):
            continue
        row, sum_row = layout.row_of[tensor], layout.sum_row_of[tensor]
        if is_here:
            n = hold_own(
                p, q, device_of, replicas, layout, tables, device, tensor, local, start_s, end_s, h, n
            )
            continue
        if row >= 0 and layout.slot_of[row, device] >= 0:
            slot, columns = layout.slot_of[row, device], tables.arrival_s.shape[1]
            for at in range(1 if q.is_parameter[maker] else columns):
                if tables.arrival_s[slot, at] >= 0.0:
                    until = last_use_s(p, q, device_of, home, tensor, at, columns - 1, False, local, end_s)
                    n = hold(h, n, tables.arrival_s[slot, at], until, p.size[tensor])
        if sum_row >= 0 and layout.slot_of[sum_row, device] >= 0:
            slot, last = layout.slot_of[sum_row, device], tables.arrival_s.shape[1] - 1
            until = last_use_s(p, q, device_of, home, tensor, last, last, True, local, end_s)
            n = hold(h, n, tables.arrival_s[slot, last], until, p.size[tensor])
    return n


@kernel
def hold_own(p, q, device_of, replicas, layout, tables, device, tensor, local, start_s, end_s, h, n):
    """Finds how long a device holds a tensor that it makes, in each microbatch.

    Args:
        p, q, device_of, replicas, layout, tables, device, local, start_s, end_s, h: as of `find_held`.
        tensor: index, int.
        n: number of holdings so far, int.

    Returns:
        Number of holdings.
    """
    maker = p.producer[tensor]
    row, sum_row = layout.row_of[tensor], layout.sum_row_of[tensor]
    home, number, count = replicas.head[device], replicas.number[device], replicas.n_replicas[device]
    end = end_s.shape[1] - 1
    last = end - (end - number) % count
    is_update = q.phase[maker] == OPTIMIZER_PHASE
    for column in range(number, last + 1, count):
        at = end if is_update else column
        since, read = start_s[local[maker], at], end if is_update else last
        until = end_s[local[maker], at]
        until = max(until, last_use_s(p, q, device_of, home, tensor, at, read, False, local, end_s))
        sent = 0 if q.is_parameter[maker] else at
        if row >= 0 and sent % count == number:
            until = max(until, last_sent_s(layout, tables, row, sent))
        if sum_row >= 0 and column >= count:
            until = max(until, tables.ready_s[sum_row, column])
        if q.is_gradient[tensor] and column < count:
            until = max(until, last_use_s(p, q, device_of, home, tensor, end, end, True, local, end_s))
            until = max(until, tables.reduced_s[home])
            if sum_row >= 0 and end % count == number:
                until = max(until, last_sent_s(layout, tables, sum_row, end))
        n = hold(h, n, since, until, p.size[tensor])
        if q.is_parameter[maker] or is_update:
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
def last_use_s(p, q, device_of, home, tensor, column, last, of_sum, local, end_s):
    """Finds the end of the last op on a device that reads a tensor of a microbatch.

    Args:
        p, q, device_of, local, end_s: as of `find_held`.
        home: first device of the stage of the device, int.
        tensor, column: indices, int; a parameter is read in all microbatches.
        last: the microbatch that updates read, int.
        of_sum: whether the sum of a gradient is asked for, which updates read, bool.

    Returns:
        Seconds; 0 if none reads it.
    """
    found = 0.0
    maker, end = p.producer[tensor], end_s.shape[1] - 1
    for j in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
        reader = p.consumer_item[j]
        is_update = q.phase[reader] == OPTIMIZER_PHASE
        if device_of[reader] != home or (q.is_gradient[tensor] and is_update != of_sum):
            continue
        if is_update:
            found = max(found, end_s[local[reader], end] if column == last or q.is_parameter[maker] else 0.0)
        elif q.is_parameter[maker]:
            for each in range(end + 1):
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
