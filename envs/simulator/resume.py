"""Simulates a placement that equals the previous one before some op.

Under schedule `program` ops run one by one in program order, so nothing that happens before the first moved
op changes. Two simulations lie side by side: the *current* one, of the placement that a search is at, and the
*candidate*, of that placement with a move. The candidate resumes the current one at the last saved state
before the move; `commit` makes them change places. The result equals a full simulation to the bit. Under
`fifo` a move may change what happened before it, so everything is simulated anew.

The kernels share these arguments besides those of the package:

    pair: `SimulationPair`; the candidate is written.
    saved: one row of `SimulationPair.saved`, the state before a block of ops.
    limit_s: step time above which the exact one does not matter, seconds.
    work_s: work that the placement gives each device, seconds, (n_devices,).
    remaining_s: work that is still to be done, seconds, (n_devices,).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.problem_arrays import N_CLOCKS, OP_GAP_S, PROGRAM, SCHEDULE
from envs.simulator.arrays import UNSENT, Timeline, clear, n_clocks
from envs.simulator.fifo import run_fifo
from envs.simulator.kernels import issue
from envs.simulator.transfers import SendLog, rollback
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

ROUNDING = 1e-9
"""Relative error that the work of a device gains as it is summed up move by move; limits need this margin."""
STRIDE = 16
"""Ops of a block; the state is saved before each block."""

SAVED_TOTAL, SAVED_ARRAYS = range(2)
"""Columns of a saved state: the step time so far; from the second on the work that each device has done, and
the clocks, in seconds."""


class SimulationPair(NamedTuple):
    """The current and the candidate simulation, one a row; `new_pair` creates it."""

    timeline: Timeline  # (2, ...) each
    log: SendLog  # (2, ...) each; the slots filled since the start of the step
    saved: FloatArray  # (2, n_blocks, 1 + n_devices + n_clocks) the state before a block
    n_logged: IntArray  # (2, n_blocks) slots filled before a block
    current: IntArray  # (1,) row of the current simulation
    n_shared: IntArray  # (1,) blocks that both rows have in common
    remaining_s: FloatArray  # (n_devices,) work that is still to be done


def new_pair(n_ops: int, n_tensors: int, n_devices: int) -> SimulationPair:
    """Creates two empty simulations; the first `run_moved` must begin at op 0."""
    n_slots, n_blocks = n_tensors * n_devices, -(-n_ops // STRIDE)
    return SimulationPair(
        Timeline(
            start=np.zeros((2, n_ops)),
            finish=np.zeros((2, n_ops)),
            sent=np.full((2, n_slots), UNSENT),
            arrival=np.full((2, n_slots), UNSENT),
            free=np.zeros((2, n_clocks(n_devices))),
        ),
        SendLog(slot=np.zeros((2, n_slots), dtype=np.int32), n=np.zeros((2, 1), dtype=np.int64)),
        saved=np.zeros((2, n_blocks, SAVED_ARRAYS + n_devices + n_clocks(n_devices))),
        n_logged=np.zeros((2, n_blocks), dtype=np.int64),
        current=np.zeros(1, dtype=np.int64),
        n_shared=np.zeros(1, dtype=np.int64),
        remaining_s=np.zeros(n_devices),
    )


@kernel
def row_of(timeline, row):
    """Returns views of one of two timelines."""
    return Timeline(
        timeline.start[row],
        timeline.finish[row],
        timeline.sent[row],
        timeline.arrival[row],
        timeline.free[row],
    )


@kernel
def log_of(log, row):
    """Returns views of one of two logs."""
    return SendLog(log.slot[row], log.n[row])


@kernel
def candidate_timeline(pair):
    """Returns the timeline of the last `run_moved`."""
    return row_of(pair.timeline, 1 - pair.current[0])


@kernel(entry=True)
def commit(pair):
    """Makes the candidate the current simulation."""
    pair.current[0] = 1 - pair.current[0]


@kernel(entry=True)
def run_moved(p, device_of, pair, first, limit_s, work_s):
    """Simulates a complete placement that equals the current one before op `first`.

    Returns:
        Step time in seconds; infinity if it exceeds `limit_s` and that is seen early: after each block, a
        device still has the rest of its work to do.
    """
    if p.rules[SCHEDULE] != PROGRAM:
        timeline = candidate_timeline(pair)
        clear(timeline)
        return run_fifo(p, device_of, timeline)
    block = first // STRIDE
    rewind(p, pair, block)
    return resume(p, device_of, pair, block, limit_s, work_s)


@kernel
def rewind(p, pair, block):
    """Makes the candidate equal to the current simulation before a block (its index), and empty after."""
    s, t = pair.current[0], 1 - pair.current[0]
    a, b = row_of(pair.timeline, s), row_of(pair.timeline, t)
    shared = min(pair.n_shared[0], block)
    log = log_of(pair.log, t)
    rollback(b, log, pair.n_logged[t, shared])
    for i in range(pair.n_logged[s, shared], pair.n_logged[s, block]):
        slot = pair.log.slot[s, i]
        log.slot[i] = slot
        b.sent[slot], b.arrival[slot] = a.sent[slot], a.arrival[slot]
    log.n[0] = pair.n_logged[s, block]
    for op in range(shared * STRIDE, block * STRIDE):
        b.start[op], b.finish[op] = a.start[op], a.finish[op]
    for i in range(shared + 1, block + 1):
        pair.n_logged[t, i] = pair.n_logged[s, i]
        for j in range(SAVED_ARRAYS + len(p.memory) + p.rules[N_CLOCKS]):
            pair.saved[t, i, j] = pair.saved[s, i, j]
    pair.n_shared[0] = block


@kernel
def resume(p, device_of, pair, first, limit_s, work_s):
    """Simulates the rewound candidate from block `first` on, and saves the state before each later block.

    Returns:
        As `run_moved`.
    """
    row, remaining_s, n_ops = 1 - pair.current[0], pair.remaining_s, len(device_of)
    timeline, log, saved = row_of(pair.timeline, row), log_of(pair.log, row), pair.saved[row]
    if first:
        total = restore(p, saved[first], timeline, work_s, remaining_s)
    else:
        total = begin(timeline, work_s, remaining_s)
    for block in range(first, len(saved)):
        if block > first:
            save(p, saved[block], timeline, work_s, remaining_s, total)
            pair.n_logged[row, block] = log.n[0]
        for op in range(block * STRIDE, min(block * STRIDE + STRIDE, n_ops)):
            total = max(total, issue(p, device_of, timeline, op, log))
            remaining_s[device_of[op]] -= p.op_seconds[op, device_of[op]]
        for device in range(len(remaining_s)):
            if timeline.free[device] - p.gaps[OP_GAP_S] + remaining_s[device] > limit_s:
                return np.inf
    return total


@kernel
def begin(timeline, work_s, remaining_s):
    """Sets the state before the first op, and returns the step time so far, 0 s.

    Args:
        timeline: `free` is written.
        remaining_s: written.
    """
    timeline.free[:] = 0.0
    for device in range(len(work_s)):
        remaining_s[device] = work_s[device]
    return 0.0


@kernel
def save(p, saved, timeline, work_s, remaining_s, total_s):
    """Saves the state before a block.

    Args:
        saved: written.
        total_s: step time so far, seconds.
    """
    n_devices = len(work_s)
    saved[SAVED_TOTAL] = total_s
    for device in range(n_devices):
        saved[SAVED_ARRAYS + device] = work_s[device] - remaining_s[device]
    for clock in range(p.rules[N_CLOCKS]):
        saved[SAVED_ARRAYS + n_devices + clock] = timeline.free[clock]


@kernel
def restore(p, saved, timeline, work_s, remaining_s):
    """Restores a saved state, and returns the step time so far in seconds.

    The work of each device may differ from that at the time of saving, as long as the ops before the block
    are where they were.

    Args:
        timeline: `free` is written.
        remaining_s: written.
    """
    n_devices = len(work_s)
    for device in range(n_devices):
        remaining_s[device] = work_s[device] - saved[SAVED_ARRAYS + device]
    for clock in range(p.rules[N_CLOCKS]):
        timeline.free[clock] = saved[SAVED_ARRAYS + n_devices + clock]
    return saved[SAVED_TOTAL]
