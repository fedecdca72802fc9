"""The numba loop over all single moves of a placement."""

from __future__ import annotations

import numpy as np

from envs.simulator.jit import kernel
from envs.simulator.kernels import run_moved, stand


@kernel(entry=True)
def deviate(p, unit_ptr, unit_item, device_of, pair, work_s, limit_s, total_s):
    """Move each unit to each device and back; fills `total_s` (n_units, n_devices)."""
    stay_s = run_moved(p, device_of, pair, np.int64(0), np.inf, work_s)
    stand(pair)
    for unit in range(len(unit_ptr) - 1):
        first, last = unit_ptr[unit], unit_ptr[unit + 1]
        source = device_of[unit_item[first]]
        for device in range(total_s.shape[1]):
            if device == source:
                total_s[unit, device] = stay_s
                continue
            for k in range(first, last):
                op = unit_item[k]
                device_of[op] = device
                work_s[source] -= p.op_seconds[op, source]
                work_s[device] += p.op_seconds[op, device]
            total_s[unit, device] = run_moved(p, device_of, pair, unit_item[first], stay_s + limit_s, work_s)
            for k in range(first, last):
                op = unit_item[k]
                device_of[op] = source
                work_s[source] += p.op_seconds[op, source]
                work_s[device] -= p.op_seconds[op, device]
