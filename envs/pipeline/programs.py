"""Kernels that make the programs of devices, and find which tensors they exchange.

A device runs the ops of an action in program order, so only tensors from other devices make it wait. The
times of a program are therefore sums that hold for every microbatch; what differs is when tensors arrive.
The first microbatch has sums of its own, as it adds no gradients. An action does not wait for what the
forward actions of its device and microbatch have received.

In all kernels here `p` is a `ProblemArrays`, `q` a `PipelineArrays`, `runs` a `SecondRuns`, `placed` a
`PlacedStages`, `agenda` an `Agenda`, `layout` an `OpLists`, `sums` a `Sums`, `is_summed` a column of it, and
`out` the `Steps` that are made, which kernels write. `op`, `reader`, `tensor` and `device` are indices,
`place` is that of an op in `OpLists`, `n` and `step` are steps of a program and `begin` its first one, all
int; `device_of` and `stage_of` are of each op, int64 (n_first_ops,); `column` is `FIRST` or `LATER`.
"""

from __future__ import annotations

import numpy as np

from envs.pipeline.arrays import (
    BACKWARD_PHASE,
    FIRST,
    LATER,
    N_KINDS,
    OPTIMIZER_PHASE,
    RECEIVE,
    RECEIVE_ONCE,
    RECOMPUTED_PHASE,
    RUN,
    SEND,
    Steps,
)
from envs.problem_arrays import ISSUE_S, NEXT_ISSUE_S, OP_GAP_S, SENDS_PER_TENSOR
from graphs.system.jit import kernel

STEPS, ROWS, SLOTS = range(3)
"""Columns of `Steps.n`."""
NOBODY = -1
"""Row of what no other device reads."""


@kernel(allocates=True)
def make_programs(p, q, runs, placed, agenda, layout, sums):
    """Makes the programs of all lists."""
    n_tensors, n_devices, n_reads = len(p.producer), len(p.memory), 2 * len(p.input_item)
    n_steps = n_reads + len(q.phase) + (6 if len(sums.is_summed) else 3) * n_tensors
    seconds, wires = np.empty((3, n_steps, 2)), np.full((3, 2 * n_tensors), -1, np.int32)
    slots, n_queued = np.empty((5, n_reads), np.int32), 2 * n_tensors if q.is_egress else 0
    out = Steps(
        n=np.zeros(3, np.int64),
        step_ptr=np.zeros(len(layout.ptr), np.int64),
        code=np.empty(n_steps, np.int8),
        number=np.empty(n_steps, np.int32),
        reader=np.empty(n_steps, np.int32),
        issued=np.empty((n_steps, 2), np.int32),
        seconds=seconds[0],
        rest_s=seconds[1],
        issue_s=seconds[2],
        row_of=wires[0],
        row_wire=np.empty(2 * n_tensors, np.int32),
        slot_ptr=np.zeros(n_devices + 1, np.int64),
        slot_of=wires[1],
        heard=wires[2],
        slot_wire=slots[0],
        source=slots[1],
        target=slots[2],
        at_end=slots[4],
        transfer_s=np.empty(n_reads),
        first_slot=np.full(n_queued, -1, np.int32),
        next_slot=slots[3],
    )
    number_rows(p, q, placed.device_of, out)
    for device in range(n_devices):
        begin, updates = agenda.first[device], agenda.first[device + 1] - 2
        backward = begin + (updates - begin) // N_KINDS
        for list_ in range(begin, updates + 1):
            heard_from = begin if list_ < backward or list_ == updates else backward
            if list_ == updates and q.is_egress:
                queue_sums(p, placed.device_of, out, sums.is_summed, device)
            for place in range(layout.ptr[list_], layout.ptr[list_ + 1]):
                if list_ == updates and len(sums.is_summed):
                    wait_for_sums(p, placed, out, sums.is_summed, layout.op[place], device, place)
                receive_inputs(p, q, runs, placed, layout, out, device, list_, heard_from, place)
                add_op(p, out, out.step_ptr[list_], layout.op[place], device)
                if len(sums.is_summed):
                    send_and_note(p, q, out, sums.is_summed, out.step_ptr[list_], layout.op[place], device)
                else:
                    send_outputs(p, q, out, out.step_ptr[list_], layout.op[place], device)
            out.step_ptr[list_ + 1] = out.n[STEPS]
        out.step_ptr[updates + 2] = out.n[STEPS]
        out.slot_ptr[device + 1] = out.n[SLOTS]
    for device in range(n_devices - 1 if q.is_egress else -1, -1, -1):
        for slot in range(out.slot_ptr[device], out.slot_ptr[device + 1]):
            row = out.row_of[out.slot_wire[slot]]
            out.target[slot] = device
            out.next_slot[slot], out.first_slot[row] = out.first_slot[row], slot
    return out


@kernel
def number_rows(p, q, device_of, out):
    """Numbers the tensors that other devices read; the sum of a gradient has a row of its own."""
    for tensor in range(len(p.consumer_ptr) - 1):
        device = device_of[p.producer[tensor]]
        for reader in p.consumer_item[p.consumer_ptr[tensor] : p.consumer_ptr[tensor + 1]]:
            wire = wire_of(q, tensor, reader)
            if device_of[reader] != device and out.row_of[wire] < 0:
                out.row_of[wire], out.row_wire[out.n[ROWS]] = out.n[ROWS], wire
                out.n[ROWS] += 1


@kernel
def wire_of(q, tensor, reader):
    """Returns the wire on which an op reads a tensor."""
    return 2 * tensor + (q.is_gradient[tensor] > 0 and q.phase[reader] == OPTIMIZER_PHASE)


@kernel
def reads(p, runs, op):
    """Returns the range of `ProblemArrays.input_item` that says what an op, or its first run, reads."""
    first = op if op < len(p.input_ptr) - 1 else runs.first[op]
    return range(p.input_ptr[first], p.input_ptr[first + 1])


@kernel
def tensor_read(p, q, runs, stage_of, layout, op, tensor):
    """Returns a tensor that an op reads, or its second tensor where the op reads that in its place."""
    maker = p.producer[tensor]
    if len(runs.op) == 0 or runs.op[maker] < 0 or layout.list_of[runs.op[maker]] < 0:
        return tensor
    reads_again = q.phase[op] == BACKWARD_PHASE or q.phase[op] == RECOMPUTED_PHASE
    return runs.tensor[tensor] if reads_again and stage_of[runs.first[op]] == stage_of[maker] else tensor


@kernel
def receive_inputs(p, q, runs, placed, layout, out, device, list_, heard_from, place):
    """Waits for the tensors that an op reads of other devices and that its device does not have yet.

    Args:
        list_: list of the op, int.
        heard_from: `list_` need not wait for what lists of the device received before this one, int.
    """
    op = layout.op[place]
    first = out.slot_ptr[device]
    for k in reads(p, runs, op):
        tensor = tensor_read(p, q, runs, placed.stage_of, layout, op, p.input_item[k])
        maker = p.producer[tensor]
        if maker >= len(placed.device_of) or placed.device_of[maker] == device:
            continue
        wire = wire_of(q, tensor, op)
        if out.slot_of[wire] < first:
            slot, source = out.n[SLOTS], placed.device_of[maker]
            out.slot_of[wire], out.slot_wire[slot] = slot, wire
            out.source[slot] = source
            out.at_end[slot] = q.phase[op] == OPTIMIZER_PHASE and not q.is_parameter[maker]
            to = source if p.rules[SENDS_PER_TENSOR] else device
            out.transfer_s[slot] = (p.size[tensor] + p.n_half[source, to]) / p.bandwidth[source, to]
            out.n[SLOTS] += 1
        elif out.heard[wire] == list_ or out.heard[wire] < heard_from:
            continue
        out.heard[wire] = list_
        n = out.n[STEPS]
        out.code[n] = RECEIVE_ONCE if q.is_parameter[maker] else RECEIVE
        out.number[n], out.reader[n] = out.slot_of[wire], place
        out.n[STEPS] += 1


@kernel
def wait_for_sums(p, placed, out, is_summed, op, device, place):
    """Waits for the sums over replicas that an update reads of its own device."""
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor, n = p.input_item[k], out.n[STEPS]
        if is_summed[tensor] and placed.device_of[p.producer[tensor]] == device:
            out.code[n], out.number[n], out.reader[n] = RECEIVE, NOBODY - 1 - tensor, place
            out.n[STEPS] += 1


@kernel
def add_op(p, out, begin, op, device):
    """Runs an op, in the step before where that runs ops too."""
    step, seconds = last_run(out, begin), p.op_seconds[op, device]
    for column in (FIRST, LATER):
        if seconds > 0.0:
            add_seconds(p, out, step, column, seconds)
        out.rest_s[step, column] = p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0


@kernel
def send_outputs(p, q, out, begin, op, device):
    """Notes when the tensors that an op makes are ready, and adds gradients to their sums."""
    made = p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]
    for tensor in made:
        send(out, begin, out.row_of[2 * tensor])
    for tensor in made:
        if q.is_gradient[tensor]:
            step, seconds = last_run(out, begin), q.accumulate_s[tensor, device]
            out.rest_s[step, LATER] = p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0
            if seconds > 0.0:
                add_seconds(p, out, step, LATER, seconds)
            send(out, begin, out.row_of[2 * tensor + 1])


@kernel
def send_and_note(p, q, out, is_summed, begin, op, device):
    """Does what `send_outputs` does, and notes when gradients that replicas sum are done.

    One kernel for both would be too large to be inlined.
    """
    made = p.output_item[p.output_ptr[op] : p.output_ptr[op + 1]]
    for tensor in made:
        send(out, begin, out.row_of[2 * tensor])
    for tensor in made:
        if q.is_gradient[tensor]:
            step, seconds = last_run(out, begin), q.accumulate_s[tensor, device]
            out.rest_s[step, LATER] = p.gaps[OP_GAP_S] if seconds > 0.0 else 0.0
            if seconds > 0.0:
                add_seconds(p, out, step, LATER, seconds)
            send(out, begin, out.row_of[2 * tensor + 1])
        if tensor < len(is_summed) and is_summed[tensor]:
            send(out, begin, NOBODY - 1 - tensor)


@kernel
def queue_sums(p, device_of, out, is_summed, device):
    """Sends the gradients that replicas sum; before all updates, as the sums come after the actions."""
    for tensor in range(len(is_summed)):
        if is_summed[tensor] and device_of[p.producer[tensor]] == device:
            send(out, out.n[STEPS], out.row_of[2 * tensor + 1])


@kernel
def last_run(out, begin):
    """Returns the last step of a program, which runs ops; it is added where the last one does not."""
    n = out.n[STEPS]
    if n > begin and out.code[n - 1] == RUN:
        return n - 1
    out.code[n] = RUN
    for column in (FIRST, LATER):
        out.seconds[n, column] = 0.0
        out.rest_s[n, column] = last_rest_s(out, begin, n, column)
        out.issue_s[n, column] = -np.inf
        out.issued[n, column] = 0
    out.n[STEPS] += 1
    return n


@kernel
def add_seconds(p, out, step, column, seconds):
    """Adds an op that takes time to a step.

    Args:
        seconds: time of the op.
    """
    out.seconds[step, column] += seconds + p.gaps[OP_GAP_S]
    issued_s = p.gaps[ISSUE_S] + out.issued[step, column] * p.gaps[NEXT_ISSUE_S]
    out.issue_s[step, column] = max(out.issue_s[step, column], issued_s) + seconds + p.gaps[OP_GAP_S]
    out.issued[step, column] += 1


@kernel
def last_rest_s(out, begin, n, column):
    """Finds how long the device rests after the ops before a step, which end that much before it is free.

    Returns:
        Seconds; 0 after a wait.
    """
    last = n - 1
    while last > begin and out.code[last] == SEND:
        last -= 1
    return out.rest_s[last, column] if last >= begin and out.code[last] == RUN else 0.0


@kernel
def send(out, begin, row):
    """Notes in a program that a tensor is ready.

    Args:
        row: row of the tensor, int; `NOBODY` = no other device reads it.
    """
    if row == NOBODY:
        return
    n = out.n[STEPS]
    out.code[n], out.number[n] = SEND, row
    for column in (FIRST, LATER):
        out.rest_s[n, column] = last_rest_s(out, begin, n, column)
    out.n[STEPS] += 1
