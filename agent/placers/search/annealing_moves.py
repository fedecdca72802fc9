"""The chain of annealing and local search on the simulator's kernels: its random moves, and which it takes.

In all kernels here `units` is a `Units`, `segments` a `Segments`, `chain` an `AnnealingChain` whose proposal
moves write, and `rng` a `numpy.random.Generator`. `unit`, `device` and `target`, a device, are indices, int;
`n_moved` is the number of units moved so far, int, which moves return; `n_devices` is a number, int; `p` is a
`ProblemArrays`, `scale_s` the step time of energy 1, seconds, and `track_memory` says that a device can
overflow, bool.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.objective import OVER_BYTES, TOTAL_S
from envs.simulator.arrays import copy
from envs.simulator.memory import peak_memory
from envs.simulator.resume import ROUNDING, SimulationPair, candidate_timeline, commit, run_moved
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


OVERFLOW_COST = 10.0
"""Least energy of an overflow as large as all memory; a step on the fastest single device has energy 1."""
PRICED_AFTER, PRICE_FACTOR = 50, 1.5
"""Proposals after which the price of an overflow changes, and the factor by which it does."""


@kernel(inline=True)
def overflow_bytes(p, chain, total_s):
    """Sums the bytes by which the candidate simulation exceeds the memory of each device.

    Args:
        total_s: step time of the proposed placement, seconds.
    """
    peak_memory(p, chain.device_of, candidate_timeline(chain.pair), total_s, chain.peak)
    over = 0.0
    for device in range(len(chain.peak)):
        over += max(chain.peak[device] - p.memory[device], 0.0)
    return over


@kernel(inline=True)
def accept(p, chain, first, limit, scale_s, track_memory):
    """Accepts the proposed placement if its energy is within a limit.

    Memory only adds energy, so it is simulated only where the time alone is within the limit.

    Args:
        first: index of the first op moved, int.
        limit: greatest energy to accept.

    Returns:
        Whether it is accepted.
    """
    safe_s = limit * scale_s * (1.0 + ROUNDING)
    total_s = run_moved(p, chain.device_of, chain.pair, first, safe_s, chain.work_s)
    energy = total_s / scale_s
    if energy > limit:
        return False
    over = overflow_bytes(p, chain, total_s) if track_memory else 0.0
    excess = over / p.memory.sum()
    energy += chain.energy[PRICE] * excess
    if energy > limit:
        return False
    commit(chain.pair)
    chain.energy[ENERGY], chain.energy[EXCESS] = energy, excess
    best = chain.best_score
    if over < best[OVER_BYTES] or (over == best[OVER_BYTES] and total_s < best[TOTAL_S]):
        best[OVER_BYTES], best[TOTAL_S] = over, total_s
        copy(chain.device_of, chain.best)
    return True


@kernel
def change_price(chain):
    """Raises the price of an overflow if the current placement has one, else lowers it to the least.

    Where most ops are much faster on devices with little memory, no price is right for all graphs.

    Source: the penalties of Gendreau, Hertz and Laporte 1994 (doi:10.1287/mnsc.40.10.1276), section 3.
    """
    energy = chain.energy
    price = energy[PRICE] * (PRICE_FACTOR if energy[EXCESS] > 0.0 else 1.0 / PRICE_FACTOR)
    price = max(price, OVERFLOW_COST)
    energy[ENERGY] += (price - energy[PRICE]) * energy[EXCESS]
    energy[PRICE] = price


@kernel(entry=True)
def anneal(p, units, segments, chain, n, temperature, module_share, scale_s, track_memory, rng):
    """Makes proposals and accepts them by Metropolis' rule; at temperature 0, none that is worse.

    Args:
        n: number of proposals, int.
        temperature: temperature in units of energy.
        module_share: probability that a proposal moves a module.
        rng: generator.
    """
    run_moved(p, chain.device_of, chain.pair, np.int64(0), np.inf, chain.work_s)
    commit(chain.pair)
    for proposal in range(n):
        if track_memory and proposal % PRICED_AFTER == PRICED_AFTER - 1:
            change_price(chain)
        n_moved = propose(units, segments, chain, len(p.memory), module_share, rng)
        limit = chain.energy[ENERGY] - temperature * np.log(1.0 - rng.random())
        if n_moved == 0:
            continue
        if accept(p, chain, first_moved(units, chain, n_moved), limit, scale_s, track_memory):
            continue
        for i in range(n_moved - 1, -1, -1):
            put(units, chain, chain.moved[i], chain.back[i])
