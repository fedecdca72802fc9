"""The numba loops of annealing and local search, over the simulator's kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.simulator.jit import kernel
from envs.simulator.kernels import SimulationPair, candidate_timeline, commit, copy, peak_memory, run_moved
from graphs.op_graph import FloatArray, IntArray

TO_NEIGHBOUR = 0.8
"""How often a move goes to the device of a unit that the moved one exchanges tensors with."""
ONE, WITH_NEIGHBOURS, STRETCH = 0.1, 0.6, 0.95
"""Cumulative shares of the moves; the rest are swaps. Tuned on a sixth of the benchmark set's graphs."""
OVERFLOW_COST = 10.0
"""Energy of overflowing all of the memory; a whole step on the fastest device has energy 1."""
ROUNDING = 1e-9
"""The work of a device is summed up move by move; it may be off by less than this share."""


class Walker(NamedTuple):
    """The state of one search; a scalar is an array of one."""

    device_of: IntArray  # (n_ops,) where it stands
    energy: FloatArray  # (1,) of that
    best: IntArray  # (n_ops,) the best placement it met
    best_score: FloatArray  # (2,) bytes over memory, step seconds
    moved: IntArray  # (n_units,) units of the present move
    back: IntArray  # (n_units,) their devices before it
    pair: SimulationPair
    work_s: FloatArray  # (n_devices,) work of each device
    peak: FloatArray  # (n_devices,) scratch


@kernel
def draw(n, rng):
    """One of 0 to n - 1. The generator's own `integers` makes an array of one, which costs a simulation."""
    return int(rng.random() * n)


@kernel
def device_of_unit(units, walker, unit):
    """Device that a unit is on."""
    return walker.device_of[units.member_item[units.member_ptr[unit]]]


@kernel
def put(units, walker, unit, device):
    """Put all of a unit's ops on a device."""
    source = device_of_unit(units, walker, unit)
    walker.work_s[source] -= units.seconds[unit, source]
    walker.work_s[device] += units.seconds[unit, device]
    for k in range(units.member_ptr[unit], units.member_ptr[unit + 1]):
        walker.device_of[units.member_item[k]] = device


@kernel
def move(units, walker, n_moved, unit, device):
    """Move one unit and note where it came from; returns the number moved so far."""
    source = device_of_unit(units, walker, unit)
    if source == device:
        return n_moved
    walker.moved[n_moved] = unit
    walker.back[n_moved] = source
    put(units, walker, unit, device)
    return n_moved + 1


@kernel
def draw_target(units, walker, unit, n_devices, rng):
    """Another device for a unit: often that of a neighbour, else any."""
    first, last = units.near_ptr[unit], units.near_ptr[unit + 1]
    if first < last and rng.random() < TO_NEIGHBOUR:
        target = device_of_unit(units, walker, units.near_item[first + draw(last - first, rng)])
        if target != device_of_unit(units, walker, unit):
            return target
    return (device_of_unit(units, walker, unit) + 1 + draw(n_devices - 1, rng)) % n_devices


@kernel
def move_with_neighbours(units, walker, unit, target):
    """Move a unit and its neighbours on the same device."""
    source = device_of_unit(units, walker, unit)
    n_moved = move(units, walker, np.int64(0), unit, target)
    for k in range(units.near_ptr[unit], units.near_ptr[unit + 1]):
        if device_of_unit(units, walker, units.near_item[k]) == source:
            n_moved = move(units, walker, n_moved, units.near_item[k], target)
    return n_moved


@kernel
def move_stretch(units, walker, unit, target, rng):
    """Move a stretch of a walk around a unit; its length is log-uniform up to half of the units."""
    n_units = len(units.held)
    which = draw(len(units.walks), rng)
    length = int(np.exp(rng.random() * np.log(max(n_units / 2.0, 2.0))))
    first = units.places[which, unit] - draw(length + 1, rng)
    n_moved = 0
    for at in range(max(first, 0), min(first + length + 1, n_units)):
        n_moved = move(units, walker, n_moved, units.walks[which, at], target)
    return n_moved


@kernel
def propose(units, walker, n_devices, rng):
    """Make a random move; returns the number of units moved."""
    unit = draw(len(units.held), rng)
    kind = rng.random()
    if kind < STRETCH:
        target = draw_target(units, walker, unit, n_devices, rng)
        if kind < ONE:
            return move(units, walker, np.int64(0), unit, target)
        if kind < WITH_NEIGHBOURS:
            return move_with_neighbours(units, walker, unit, target)
        return move_stretch(units, walker, unit, target, rng)
    source = device_of_unit(units, walker, unit)
    other = draw(len(units.held), rng)
    n_moved = move(units, walker, np.int64(0), unit, device_of_unit(units, walker, other))
    return move(units, walker, n_moved, other, source) if n_moved else 0


@kernel
def first_moved(units, walker, n_moved):
    """The first op in program order of the units that were moved."""
    first = len(walker.device_of)
    for i in range(n_moved):
        first = min(first, units.member_item[units.member_ptr[walker.moved[i]]])
    return first


@kernel(inline=True)
def overflow_bytes(p, walker, total_s):
    """Bytes over the memory of all devices together."""
    peak_memory(p, walker.device_of, candidate_timeline(walker.pair), total_s, walker.peak)
    over = 0.0
    for device in range(len(walker.peak)):
        over += max(walker.peak[device] - p.memory[device], 0.0)
    return over


@kernel(inline=True)
def accept(p, walker, first, limit, scale_s, track_memory):
    """Whether the energy of a placement moved from op `first` on is within `limit`; if so it is taken over.

    Memory only adds energy, so it is looked at only where the time alone is within the limit.
    """
    safe_s = limit * scale_s * (1.0 + ROUNDING)
    total_s = run_moved(p, walker.device_of, walker.pair, first, safe_s, walker.work_s)
    energy = total_s / scale_s
    if energy > limit:
        return False
    over = overflow_bytes(p, walker, total_s) if track_memory else 0.0
    energy += OVERFLOW_COST * over / p.memory.sum()
    if energy > limit:
        return False
    commit(walker.pair)
    walker.energy[0] = energy
    best = walker.best_score
    if over < best[0] or (over == best[0] and total_s < best[1]):
        best[0], best[1] = over, total_s
        copy(walker.device_of, walker.best)
    return True


@kernel(entry=True)
def anneal(p, units, walker, n, temperature, scale_s, track_memory, rng):
    """Make `n` proposals, accepted by Metropolis' rule; at temperature 0 none that is worse."""
    run_moved(p, walker.device_of, walker.pair, np.int64(0), np.inf, walker.work_s)
    commit(walker.pair)
    for _ in range(n):
        n_moved = propose(units, walker, len(p.memory), rng)
        limit = walker.energy[0] - temperature * np.log(1.0 - rng.random())
        if n_moved == 0:
            continue
        if accept(p, walker, first_moved(units, walker, n_moved), limit, scale_s, track_memory):
            continue
        for i in range(n_moved - 1, -1, -1):
            put(units, walker, walker.moved[i], walker.back[i])
