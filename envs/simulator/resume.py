"""Simulating a placement that differs from the last one only from some op on.

Under schedule `program` ops run one by one in program order, so what happens before the first moved op stays
as it was. Two simulations lie side by side: the *standing* one, of the placement that a search is at, and the
*tried* one, of that with a move. The tried one takes up the standing one at the last mark before the move; if
the move is accepted they change places. The result is that of a full simulation to the bit. Under `fifo` a
move may change what happened before it, and everything is simulated anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.simulator.arrays import PROGRAM, Timeline, clear, run_op
from envs.simulator.fifo import run_fifo
from envs.simulator.jit import kernel
from envs.simulator.program import send
from graphs.op_graph import FloatArray, IntArray

STRIDE = 16
"""Ops of a block; the state is kept before each block."""


class Pair(NamedTuple):
    """The standing and the tried simulation, one a row; make it with `new_pair`."""

    timeline: Timeline  # (2, ...) each
    marks: (
        FloatArray  # (2, n_blocks, 1 + 2 * n_devices + n_devices ** 2) the state before a block, see `mark`
    )
    slot: NDArray[np.int32]  # (2, n_slots) slots of the timeline in the order in which they were filled
    n_filled: IntArray  # (2, n_blocks + 1) slots filled before a block
    known: IntArray  # (2,) blocks that were simulated
    standing: IntArray  # (1,) row of the standing simulation
    same: IntArray  # (1,) blocks that both rows have in common
    rest_s: FloatArray  # (n_devices,) work that is still to be done


def new_pair(n_ops: int, n_tensors: int, n_devices: int) -> Pair:
    """Two empty simulations; the first `run_moved` is to begin at op 0."""
    n_slots, n_blocks = n_tensors * n_devices, -(-n_ops // STRIDE)
    return Pair(
        Timeline(
            start=np.zeros((2, n_ops)),
            finish=np.zeros((2, n_ops)),
            sent=np.full((2, n_slots), -1.0),
            arrival=np.full((2, n_slots), -1.0),
            device_free=np.zeros((2, n_devices)),
            link_free=np.zeros((2, n_devices**2)),
        ),
        marks=np.zeros((2, n_blocks, 1 + 2 * n_devices + n_devices**2)),
        slot=np.zeros((2, n_slots), dtype=np.int32),
        n_filled=np.zeros((2, n_blocks + 1), dtype=np.int64),
        known=np.zeros(2, dtype=np.int64),
        standing=np.zeros(1, dtype=np.int64),
        same=np.zeros(1, dtype=np.int64),
        rest_s=np.zeros(n_devices),
    )


@kernel
def row_of(timeline, row):
    """Views of one of two timelines."""
    return Timeline(
        timeline.start[row],
        timeline.finish[row],
        timeline.sent[row],
        timeline.arrival[row],
        timeline.device_free[row],
        timeline.link_free[row],
    )


@kernel
def tried(pair):
    """The timeline of the last `run_moved`."""
    return row_of(pair.timeline, 1 - pair.standing[0])


@kernel(entry=True)
def stand(pair):
    """Let what was tried be what stands."""
    pair.standing[0] = 1 - pair.standing[0]


@kernel(entry=True)
def run_moved(p, device_of, pair, first, limit_s, work_s):
    """Step time of a complete placement that is the standing one up to op `first`.

    Infinity, seen early if possible, where the step must exceed `limit_s`: after a block each device still
    has the rest of its work, of `work_s` (n_devices,), to do.
    """
    timeline = tried(pair)
    if p.rules[0] != PROGRAM:
        clear(timeline)
        return run_fifo(p, device_of, timeline)
    block = first // STRIDE
    rewind(p, pair, block)
    return resume(p, device_of, pair, timeline, block, limit_s, work_s)


@kernel
def rewind(p, pair, block):
    """Make the tried simulation before a block what the standing one is, and empty from there on."""
    s, t = pair.standing[0], 1 - pair.standing[0]
    a, b = row_of(pair.timeline, s), row_of(pair.timeline, t)
    same = min(pair.same[0], block)
    for i in range(pair.n_filled[t, same], pair.n_filled[t, pair.known[t]]):
        b.sent[pair.slot[t, i]] = b.arrival[pair.slot[t, i]] = -1.0
    for i in range(pair.n_filled[s, same], pair.n_filled[s, block]):
        slot = pair.slot[s, i]
        pair.slot[t, i] = slot
        b.sent[slot], b.arrival[slot] = a.sent[slot], a.arrival[slot]
    for op in range(same * STRIDE, block * STRIDE):
        b.start[op], b.finish[op] = a.start[op], a.finish[op]
    for i in range(same + 1, block + 1):
        pair.n_filled[t, i] = pair.n_filled[s, i]
        for j in range(1 + 2 * len(p.memory) + p.rules[2]):
            pair.marks[t, i, j] = pair.marks[s, i, j]
    pair.same[0] = block


@kernel
def resume(p, device_of, pair, timeline, first, limit_s, work_s):
    """Simulate from a block on; see `run_moved`."""
    row, rest_s, n_ops = 1 - pair.standing[0], pair.rest_s, len(device_of)
    slots, n_filled, marks = pair.slot[row], pair.n_filled[row], pair.marks[row]
    total = recall(p, marks[first], timeline, work_s, rest_s) if first else begin(timeline, work_s, rest_s)
    n = n_filled[first]
    for block in range(first, len(marks)):
        if block > first:
            mark(p, marks[block], timeline, work_s, rest_s, total)
        for op in range(block * STRIDE, min(block * STRIDE + STRIDE, n_ops)):
            finish, n = issue_noting(p, device_of, timeline, op, slots, n)
            rest_s[device_of[op]] -= p.op_seconds[op, device_of[op]]
            total = max(total, finish)
        n_filled[block + 1] = n
        pair.known[row] = block + 1
        for device in range(len(rest_s)):
            if timeline.device_free[device] - p.gaps[0] + rest_s[device] > limit_s:
                return np.inf
    return total


@kernel
def begin(timeline, work_s, rest_s):
    """The state before the first op; returns the step time so far."""
    timeline.device_free[:] = 0.0
    timeline.link_free[:] = 0.0
    for device in range(len(work_s)):
        rest_s[device] = work_s[device]
    return 0.0


@kernel
def mark(p, marks, timeline, work_s, rest_s, total):
    """Note the state before a block: step time, when devices are free, the work they have done, links."""
    n_devices = len(work_s)
    marks[0] = total
    for device in range(n_devices):
        marks[1 + device] = timeline.device_free[device]
        marks[1 + n_devices + device] = work_s[device] - rest_s[device]
    for link in range(p.rules[2]):
        marks[1 + 2 * n_devices + link] = timeline.link_free[link]


@kernel
def recall(p, marks, timeline, work_s, rest_s):
    """Go back to a noted state; returns the step time so far."""
    n_devices = len(work_s)
    for device in range(n_devices):
        timeline.device_free[device] = marks[1 + device]
        rest_s[device] = work_s[device] - marks[1 + n_devices + device]
    for link in range(p.rules[2]):
        timeline.link_free[link] = marks[1 + 2 * n_devices + link]
    return marks[0]


@kernel
def issue_noting(p, device_of, timeline, op, slots, n):
    """Run the next op in program order; adds the slots filled for it to the first `n`.

    Returns:
        Its finish, and the number of slots.
    """
    if p.is_source[op]:
        timeline.start[op] = timeline.finish[op] = 0.0
        return 0.0, n
    device, n_devices = device_of[op], len(p.memory)
    ready = 0.0
    for k in range(p.input_ptr[op], p.input_ptr[op + 1]):
        tensor = p.input_item[k]
        producer = p.producer[tensor]
        source = device_of[producer]
        if source == device:
            at = timeline.finish[producer]
        else:
            base = tensor * n_devices
            at = timeline.arrival[base + device]
            if at < 0.0:
                slots[n] = base + device
                n += 1
                if p.rules[1]:
                    slots[n] = base + source
                    n += timeline.sent[base + source] < 0.0
                at = send(p, timeline, timeline.link_free, tensor, source, device, True)
        if at > ready:
            ready = at
    return run_op(p, timeline, op, device, ready), n
