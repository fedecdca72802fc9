"""Features of placement units in the simulation of the current placement."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.placers.search.annealing_moves import device_of_unit
from envs.problem_arrays import OP_GAP_S
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

DECAY = 0.95
"""Share of the counts of tries that is left after each round."""
CRITICAL_SLACK = 1e-3
"""Slack, as a share of the step, below which a unit is critical."""
SLACK, IS_CRITICAL, WORK, LAG_IN, LAG_OUT, CUT_SHARE, IDLE_BEFORE = range(7)
LOAD, FIRST, FOOTPRINT, TRIED, WON, DEGREE = range(7, 13)
"""Columns of `Scan.feature`. Times are shares of the step; the load is relative to the mean."""
N_FEATURES = 13


class Scan(NamedTuple):
    """The knowledge of choosers about the units, and scratch."""

    feature: FloatArray  # (n_units, N_FEATURES)
    critical: IntArray  # (n_units,) the critical units, in program order
    boundary: IntArray  # (n_units,) units with neighbours on other devices, by layers
    n: IntArray  # (2,) how many there are of both
    tried: FloatArray  # (n_units,) proposals that moved a unit, shared among the units of each, decayed
    won: FloatArray  # (n_units,) likewise those that shortened the step
    latest: FloatArray  # (n_ops,) latest start of each op that leaves the step as it is, seconds
    next_start: FloatArray  # (n_devices,) scratch
    counts: FloatArray  # (n_devices,) scratch
    mark: IntArray  # (n_units,) scratch
    stamp: IntArray  # (1,) the last mark


def new_scan(n_units: int, n_ops: int, n_devices: int) -> Scan:
    """Creates an empty scan."""
    return Scan(
        feature=np.zeros((n_units, N_FEATURES)),
        critical=np.zeros(n_units, dtype=np.int64),
        boundary=np.zeros(n_units, dtype=np.int64),
        n=np.zeros(2, dtype=np.int64),
        tried=np.zeros(n_units),
        won=np.zeros(n_units),
        latest=np.zeros(n_ops),
        next_start=np.zeros(n_devices),
        counts=np.zeros(n_devices),
        mark=np.zeros(n_units, dtype=np.int64),
        stamp=np.zeros(1, dtype=np.int64),
    )


@kernel(entry=True)
def scan_units(p, units, segments, chain, scan):
    """Finds the features of all units.

    Args:
        p: `ProblemArrays`.
        units: `Units`. segments: `Segments`. chain: `AnnealingChain`.
        scan: `Scan`; written.
    """
    timeline, row = chain.pair.timeline, chain.pair.current[0]
    total = 0.0
    for op in range(len(chain.device_of)):
        total = max(total, timeline.finish[row, op])
    scan.feature[:] = 0.0
    for unit in range(len(scan.feature)):
        scan.feature[unit, SLACK] = 1.0
    scan_backward(p, units, chain, scan, total)
    scan_forward(p, units, chain, scan, total)
    scan.n[:] = 0
    for unit in range(len(scan.feature)):
        finish_unit(p, units, chain, scan, unit, total)
        if scan.feature[unit, IS_CRITICAL] > 0.0:
            scan.critical[scan.n[0]] = unit
            scan.n[0] += 1
    for unit in segments.sequences[1]:
        if scan.feature[unit, CUT_SHARE] > 0.0:
            scan.boundary[scan.n[1]] = unit
            scan.n[1] += 1


@kernel
def scan_backward(p, units, chain, scan, total):
    """Finds slacks, with the copies as late after their producers as they are, and these lags.

    Args:
        p: `ProblemArrays`. units: `Units`. chain: `AnnealingChain`.
        scan: `Scan`; written.
        total: step time, seconds.
    """
    timeline, row, n_devices = chain.pair.timeline, chain.pair.current[0], len(p.memory)
    gap = p.gaps[OP_GAP_S]
    for device in range(n_devices):
        scan.next_start[device] = total + gap
    for op in range(len(chain.device_of) - 1, -1, -1):
        device, feature = chain.device_of[op], scan.feature[units.of_op[op]]
        finish = timeline.finish[row, op]
        late = total if p.is_source[op] else scan.next_start[device] - gap
        for j in range(p.output_ptr[op], p.output_ptr[op + 1]):
            tensor = p.output_item[j]
            for c in range(p.consumer_ptr[tensor], p.consumer_ptr[tensor + 1]):
                consumer, lag = p.consumer_item[c], 0.0
                target = chain.device_of[consumer]
                if target != device:
                    lag = timeline.arrival[row, tensor * n_devices + target] - finish
                    other = scan.feature[units.of_op[consumer]]
                    other[LAG_IN] = max(other[LAG_IN], lag / total)
                    feature[LAG_OUT] = max(feature[LAG_OUT], lag / total)
                late = min(late, scan.latest[consumer] - lag)
        scan.latest[op] = late - (finish - timeline.start[row, op])
        if not p.is_source[op] and p.op_seconds[op, device] > 0.0:
            scan.next_start[device] = scan.latest[op]
            feature[SLACK] = min(feature[SLACK], (late - finish) / total)


@kernel
def scan_forward(p, units, chain, scan, total):
    """Finds how long devices wait before the ops of each unit.

    Args:
        p: `ProblemArrays`. units: `Units`. chain: `AnnealingChain`.
        scan: `Scan`; written.
        total: step time, seconds.
    """
    timeline, row = chain.pair.timeline, chain.pair.current[0]
    scan.next_start[:] = 0.0
    for op in range(len(chain.device_of)):
        device = chain.device_of[op]
        if not p.is_source[op] and p.op_seconds[op, device] > 0.0:
            idle = max(timeline.start[row, op] - scan.next_start[device], 0.0)
            scan.feature[units.of_op[op], IDLE_BEFORE] += idle / total
            scan.next_start[device] = timeline.finish[row, op] + p.gaps[OP_GAP_S]


@kernel
def finish_unit(p, units, chain, scan, unit, total):
    """Fills in the features of a unit that need no timeline, and lets its counts decay.

    Args:
        p: `ProblemArrays`. units: `Units`. chain: `AnnealingChain`.
        scan: `Scan`; written.
        unit: index, int.
        total: step time, seconds.
    """
    device, feature = device_of_unit(units, chain, unit), scan.feature[unit]
    scan.tried[unit] *= DECAY
    scan.won[unit] *= DECAY
    n_near = units.near_ptr[unit + 1] - units.near_ptr[unit]
    n_out = 0
    for j in range(units.near_ptr[unit], units.near_ptr[unit + 1]):
        if device_of_unit(units, chain, units.near_item[j]) != device:
            n_out += 1
    feature[IS_CRITICAL] = 1.0 if feature[SLACK] < CRITICAL_SLACK else 0.0
    feature[WORK] = units.seconds[unit, device] / total
    feature[CUT_SHARE] = n_out / max(n_near, 1)
    feature[LOAD] = chain.work_s[device] / (chain.work_s.sum() / len(chain.work_s)) - 1.0
    feature[FIRST] = units.member_item[units.member_ptr[unit]] / len(chain.device_of)
    feature[FOOTPRINT] = units.footprint_bytes[unit] / p.memory[device]
    feature[TRIED] = np.log1p(scan.tried[unit])
    feature[WON] = np.log1p(scan.won[unit])
    feature[DEGREE] = np.log1p(n_near)
