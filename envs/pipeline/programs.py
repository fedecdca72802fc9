"""Kernels that make the parts of devices: their programs, and which tensors they exchange.

A device runs the ops of an action in program order, so only tensors from other devices make it wait. The
times of a program are therefore sums that hold for every microbatch; what differs is when tensors arrive.
The first microbatch has sums of its own, as it adds no gradients. An action does not wait for what the
forward actions of its device and microbatch have received.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `runs` a `SecondRuns`, `parts` a
`Parts`, and `device_of` that of `PlacedStages`.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import (
    BACKWARD_PHASE,
    LISTS,
    N_KINDS,
    OPTIMIZER_PHASE,
    RECEIVE,
    RECOMPUTED_PHASE,
    ROWS,
    SLOTS,
)
from envs.pipeline.layout import make_layout, stage_of_list
from envs.pipeline.program_steps import add_ops, add_send, add_sum, begin_run
from graphs.system.jit import kernel


@kernel(allocates=True)
def make_parts(p, q, runs, placed, local, n_stages, splits, parts, part_of):
    """Makes the parts that there are not yet.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        placed: `PlacedStages`.
        local, n_stages, splits: as of `make_layout`.
        parts: `Parts`; written.
        part_of: part of each device; new ones have the next numbers, int64 (n_devices,).

    Returns:
        Whether there is room for them, bool.
    """
    is_new = np.zeros(len(part_of), np.int64)
    for device in range(len(part_of)):
        if part_of[device] >= parts.n[0]:
            is_new[device] = 1
    if not is_new.any():
        return True
    first, ptr, ops = make_layout(p, q, runs, placed, local, n_stages, is_new, splits)
    pieces = np.zeros((len(part_of), 2), np.int64)
    for stage in range(len(placed.device)):
        if n_stages[placed.device[stage]] == 1:
            pieces[placed.device[stage]] = placed.pieces[stage]
    for device in range(len(part_of)):
        if part_of[device] == parts.n[0]:
            lists = ptr[first[device] : first[device + 1] + 1]
            if not begin_part(parts, lists, ops) or not make_part(
                p, q, runs, placed.device_of, pieces[device], n_stages[device], device, parts
            ):
                return False
    return True


@kernel
def begin_part(parts, ptr, ops):
    """Lists the ops of a new part.

    Args:
        parts: `Parts`; written.
        ptr: first position in `ops` of each list of the part, int64 (n_lists + 1,).
        ops: int64.

    Returns:
        Whether there is room for it, bool.
    """
    part, n_lists = parts.n[0], len(ptr) - 1
    lists = parts.begin[part, LISTS]
    n, most = parts.op_ptr[lists], len(parts.code)
    if max(part + 1, lists + n_lists, n + ptr[-1] - ptr[0]) > most:
        return False
    parts.begin[part + 1, LISTS] = lists + n_lists
    for each in range(n_lists):
        for op in ops[ptr[each] : ptr[each + 1]]:
            parts.op[n], parts.list_of[n] = op, lists + each
            n += 1
        parts.op_ptr[lists + each + 1] = n
    parts.held[part] = np.nan
    mark_ops(parts, part)
    return True


@kernel
def mark_ops(parts, part):
    """Makes a part the one at hand.

    Args:
        parts: `Parts`; the scratch is written.
        part: index, int.

    Returns:
        First place of the part, and of the next one.
    """
    begin, end = parts.op_ptr[parts.begin[part, LISTS]], parts.op_ptr[parts.begin[part + 1, LISTS]]
    for place in range(begin, end):
        parts.place_of[parts.op[place]] = place
    return begin, end


@kernel
def reads(p, runs, op):
    """Returns the range of `ProblemArrays.input_item` that says what an op, or its first run, reads.

    Args:
        p: `ProblemArrays`.
        runs: `SecondRuns`.
        op: index, int.
    """
    first = op if op < len(p.input_ptr) - 1 else runs.first[op]
    return range(p.input_ptr[first], p.input_ptr[first + 1])


@kernel
def second_tensor(p, q, runs, parts, part, place, tensor):
    """Returns the second tensor in place of a tensor that an op of the part at hand reads, if it reads that.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        parts: `Parts`.
        part, place: of the op, int.
        tensor: index, int.
    """
    phase, second = q.phase[parts.op[place]], runs.op[p.producer[tensor]]
    if second >= 0 and phase in (BACKWARD_PHASE, RECOMPUTED_PHASE):
        lists, after, other = parts.begin[part, LISTS], parts.begin[part + 1, LISTS], parts.place_of[second]
        if parts.op_ptr[lists] <= other < parts.op_ptr[after]:
            n_stages, each = (after - lists) // N_KINDS, parts.list_of[place] - lists
            if stage_of_list(n_stages, parts.list_of[other] - lists) == stage_of_list(n_stages, each):
                return runs.tensor[tensor]
    return tensor


@kernel
def number_rows(p, q, device_of, pieces, device, parts):
    """Numbers the tensors of the new part that other devices read.

    The sum of a gradient has another row than the gradient of a microbatch.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        device_of: device of each op, int64 (n_first_ops,).
        pieces: as of `PlacedStages`, int64 (2,).
        device: index, int.
        parts: `Parts`; written.

    Returns:
        Whether there is room for them, bool.
    """
    part = parts.n[0]
    lists, first = parts.begin[part, LISTS], parts.begin[part, ROWS]
    n = first
    for place in range(parts.op_ptr[lists], parts.op_ptr[parts.begin[part + 1, LISTS]]):
        op = parts.op[place]
        if op >= len(device_of) or is_inner(q, pieces, op):
            continue
        for tensor in p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]:
            for reader in p.consumer_item[p.consumer_ptr[tensor] : p.consumer_ptr[tensor + 1]]:
                if device_of[reader] == device or device_of[reader] < 0:
                    continue
                wire = wire_of(q, tensor, reader)
                if parts.marks[0, wire] < first:
                    if n == len(parts.code):
                        return False
                    parts.marks[0, wire], parts.row_wire[n] = n, wire
                    n += 1
    parts.begin[part + 1, ROWS] = n
    return True


@kernel
def is_inner(q, pieces, op):
    """Says whether it is known that an op is next to ops of its own device alone, and makes no gradients.

    Args:
        q: `PipelineArrays`.
        pieces: of the device, as of `PlacedStages`, int64 (2,).
        op: index, int.
    """
    return pieces[0] <= q.near[op, 0] and q.near[op, 1] < pieces[1]


@kernel
def wire_of(q, tensor, reader):
    """Returns the wire on which an op reads a tensor.

    Args:
        q: `PipelineArrays`.
        tensor, reader: indices, int.
    """
    return 2 * tensor + (q.is_gradient[tensor] > 0 and q.phase[reader] == OPTIMIZER_PHASE)


@kernel
def make_part(p, q, runs, device_of, pieces, n_stages, device, parts):
    """Makes the programs of a part whose ops are listed.

    Args:
        p: `ProblemArrays`.
        q: `PipelineArrays`.
        runs: `SecondRuns`.
        device_of: device of each op, int64 (n_first_ops,).
        pieces: of the device, as of `PlacedStages`, int64 (2,).
        n_stages: of the device, int.
        device: index, int.
        parts: `Parts`; written.

    Returns:
        Whether there is room for it, bool.
    """
    part = parts.n[0]
    lists, after = parts.begin[part, LISTS], parts.begin[part + 1, LISTS]
    n, row, slot = parts.step_ptr[lists], parts.begin[part, ROWS], parts.begin[part, SLOTS]
    first_slot, first, end = slot, parts.op_ptr[lists], parts.op_ptr[after]
    if not number_rows(p, q, device_of, pieces, device, parts):
        return False
    for each in range(lists, after - 1):
        begin, is_later = n, lists + n_stages <= each < after - 2
        place, last = parts.op_ptr[each], parts.op_ptr[each + 1]
        while place < last:
            op, stop = parts.op[place], place
            while stop < last and is_inner(q, pieces, parts.op[stop]):
                stop += 1
            if n == len(parts.code):
                return False
            if stop > place:
                n = add_ops(p, parts, begin, n, place, stop, device)
                place = stop
                continue
            read, made = reads(p, runs, op), p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]
            if n + len(read) + 3 * len(made) + 1 > len(parts.code) or slot + len(read) > len(parts.code):
                return False
            for k in read:
                tensor = p.input_item[k]
                if len(runs.op):
                    tensor = second_tensor(p, q, runs, parts, part, place, tensor)
                maker = p.producer[tensor]
                if first <= parts.place_of[maker] < end or device_of[maker] < 0:
                    continue
                wire = wire_of(q, tensor, op)
                heard = parts.marks[2, wire]
                if heard == each or (is_later and lists <= heard < lists + n_stages):
                    continue
                parts.marks[2, wire] = each
                if parts.marks[1, wire] < first_slot:
                    parts.marks[1, wire], parts.slot_wire[slot] = slot, wire
                    slot += 1
                parts.code[n], parts.reader[n] = RECEIVE, place
                parts.number[n] = parts.marks[1, wire] - first_slot
                n += 1
            n = add_ops(p, parts, begin, n, place, place + 1, device)
            for tensor in made:
                if parts.marks[0, 2 * tensor] >= row:
                    n = add_send(parts, begin, n, parts.marks[0, 2 * tensor] - row)
            for tensor in made:
                if q.is_gradient[tensor]:
                    n = begin_run(parts, begin, n)
                    add_sum(p, parts, n - 1, q.accumulate_s[tensor, device])
                    if parts.marks[0, 2 * tensor + 1] >= row:
                        n = add_send(parts, begin, n, parts.marks[0, 2 * tensor + 1] - row)
            place += 1
        parts.step_ptr[each + 1] = n
    parts.step_ptr[after] = n
    parts.begin[part + 1, SLOTS] = slot
    parts.n[0] = part + 1
    return True
