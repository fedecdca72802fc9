"""The random moves of annealing and local search, and the chain of placements that they change.

In all kernels here `units` is a `Units`, `segments` a `Segments`, `chain` an `AnnealingChain` whose proposal
moves write, and `rng` a `numpy.random.Generator`. `unit`, `device` and `target`, a device, are indices, int;
`n_moved` is the number of units moved so far, int, which moves return; `n_devices` is a number, int.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.simulator.resume import SimulationPair
from graphs.system.array_types import FloatArray, IntArray
from graphs.system.jit import kernel

TO_NEIGHBOUR = 0.8
"""Probability that a move goes to the device of a unit that the moved one exchanges tensors with."""
ONE, WITH_NEIGHBOURS, SEGMENT = 0.1, 0.6, 0.95
"""Cumulative probabilities of the moves that are none of modules; the rest are swaps. Tuned on a sixth of
the benchmark graphs."""

ENERGY, EXCESS, PRICE = range(3)
"""Columns of `AnnealingChain.energy`: the energy, the bytes over the memory limits as a share of all memory,
and the energy of an excess as large as all memory."""


class AnnealingChain(NamedTuple):
    """The state of one Markov chain of placements."""

    device_of: IntArray  # (n_ops,) the current placement, or the proposed one during a proposal
    energy: FloatArray  # (3,) of the current placement; columns `ENERGY`, `EXCESS` and `PRICE`
    best: IntArray  # (n_ops,) the best placement so far
    best_score: FloatArray  # (2,) columns `OVER_BYTES` and `TOTAL_S` of `agent.placers.state`
    moved: IntArray  # (n_units,) units that the proposal moves
    back: IntArray  # (n_units,) their devices before
    pair: SimulationPair
    work_s: FloatArray  # (n_devices,) seconds of work of each device
    peak: FloatArray  # (n_devices,) scratch


@kernel
def draw(n, rng):
    """Draws one of 0 to n - 1; `integers` would allocate, which takes as long as simulating."""
    return int(rng.random() * n)


@kernel
def device_of_unit(units, chain, unit):
    """Returns the device that a unit is on."""
    return chain.device_of[units.member_item[units.member_ptr[unit]]]


@kernel
def put(units, chain, unit, device):
    """Puts all of a unit's ops on a device."""
    source = device_of_unit(units, chain, unit)
    chain.work_s[source] -= units.seconds[unit, source]
    chain.work_s[device] += units.seconds[unit, device]
    for k in range(units.member_ptr[unit], units.member_ptr[unit + 1]):
        chain.device_of[units.member_item[k]] = device


@kernel
def move(units, chain, n_moved, unit, device):
    """Adds a unit to the proposed move, if it is not on the device already."""
    source = device_of_unit(units, chain, unit)
    if source == device:
        return n_moved
    chain.moved[n_moved] = unit
    chain.back[n_moved] = source
    put(units, chain, unit, device)
    return n_moved + 1


@kernel
def draw_target(units, chain, unit, n_devices, rng):
    """Draws another device for a unit: often that of a neighbour, else any."""
    first, last = units.near_ptr[unit], units.near_ptr[unit + 1]
    if first < last and rng.random() < TO_NEIGHBOUR:
        target = device_of_unit(units, chain, units.near_item[first + draw(last - first, rng)])
        if target != device_of_unit(units, chain, unit):
            return target
    return (device_of_unit(units, chain, unit) + 1 + draw(n_devices - 1, rng)) % n_devices


@kernel
def move_with_neighbours(units, chain, unit, target):
    """Moves a unit together with its neighbours on the same device."""
    source = device_of_unit(units, chain, unit)
    n_moved = move(units, chain, np.int64(0), unit, target)
    for k in range(units.near_ptr[unit], units.near_ptr[unit + 1]):
        if device_of_unit(units, chain, units.near_item[k]) == source:
            n_moved = move(units, chain, n_moved, units.near_item[k], target)
    return n_moved


@kernel
def move_segment(units, segments, chain, unit, target, rng):
    """Moves a segment of a sequence around a unit; its length is log-uniform up to half of the units."""
    n_units = len(units.footprint_bytes)
    which = draw(len(segments.sequences), rng)
    length = int(np.exp(rng.random() * np.log(max(n_units / 2.0, 2.0))))
    first = segments.positions[which, unit] - draw(length + 1, rng)
    n_moved = 0
    for place in range(max(first, 0), min(first + length + 1, n_units)):
        n_moved = move(units, chain, n_moved, segments.sequences[which, place], target)
    return n_moved


@kernel
def move_module(units, segments, chain, unit, target, rng):
    """Moves all of a module that a unit is in, drawn of those around it; else the unit alone."""
    first, last = segments.module_ptr[unit], segments.module_ptr[unit + 1]
    n_moved = np.int64(0)
    if first == last:
        return move(units, chain, n_moved, unit, target)
    module = segments.module_item[first + draw(last - first, rng)]
    for place in range(segments.module_first[module], segments.module_end[module]):
        n_moved = move(units, chain, n_moved, segments.sequences[-1, place], target)
    return n_moved


@kernel
def propose(units, segments, chain, n_devices, module_share, rng):
    """Proposes a random move; a swap of two units on one device moves none.

    Args:
        module_share: probability of a move of a module.
    """
    unit = draw(len(units.footprint_bytes), rng)
    if rng.random() < module_share:
        target = draw_target(units, chain, unit, n_devices, rng)
        return move_module(units, segments, chain, unit, target, rng)
    kind = rng.random()
    if kind < SEGMENT:
        target = draw_target(units, chain, unit, n_devices, rng)
        if kind < ONE:
            return move(units, chain, np.int64(0), unit, target)
        if kind < WITH_NEIGHBOURS:
            return move_with_neighbours(units, chain, unit, target)
        return move_segment(units, segments, chain, unit, target, rng)
    source = device_of_unit(units, chain, unit)
    other = draw(len(units.footprint_bytes), rng)
    n_moved = move(units, chain, np.int64(0), unit, device_of_unit(units, chain, other))
    return move(units, chain, n_moved, other, source) if n_moved else 0


@kernel
def first_moved(units, chain, n_moved):
    """Finds the first op in program order of the units that move; the number of ops for none."""
    first = len(chain.device_of)
    for i in range(n_moved):
        first = min(first, units.member_item[units.member_ptr[chain.moved[i]]])
    return first
