"""A chain whose moves stay in a neighbourhood, and that may simulate only proposals that pass a filter."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from agent.experiments.neighbourhoods.sieve import passes
from agent.placers.search.annealing_kernels import accept
from agent.placers.search.annealing_moves import (
    ONE,
    SEGMENT,
    WITH_NEIGHBOURS,
    device_of_unit,
    draw,
    draw_target,
    first_moved,
    move,
    put,
)
from envs.simulator.arrays import copy
from envs.simulator.resume import commit, run_moved
from graphs.system.array_types import IntArray
from graphs.system.jit import kernel

MOST_DRAWS = 20
"""Proposals drawn for each one that is to be simulated, at most."""


class Focus(NamedTuple):
    """The neighbourhood that moves stay in."""

    members: IntArray  # (3, n_units) its units in the order of each sequence
    inside: IntArray  # (n_units,) 1 for its units
    n: IntArray  # (1,) how many they are


def new_focus(n_units: int) -> Focus:
    """Creates an empty neighbourhood."""
    inside = np.zeros(n_units, dtype=np.int64)
    return Focus(np.zeros((3, n_units), dtype=np.int64), inside, np.zeros(1, dtype=np.int64))


@kernel(entry=True)
def focus_on(segments, chosen, focus):
    """Makes units the neighbourhood that moves stay in.

    Args:
        segments: `Segments`.
        chosen: units, int64 (k,).
        focus: `Focus`; written.
    """
    for i in range(focus.n[0]):
        focus.inside[focus.members[0, i]] = 0
    focus.n[0] = len(chosen)
    for i in range(len(chosen)):
        focus.inside[chosen[i]] = 1
        for row in range(len(focus.members)):
            focus.members[row, i] = chosen[i]
    for row in range(len(focus.members)):
        sort_by(focus.members[row, : len(chosen)], segments.positions[row])


@kernel
def sort_by(units, position):
    """Sorts units by their positions, as Shell did.

    Args:
        units: int64 (n,); written. position: of each unit, int64 (n_units,).
    """
    step = len(units) // 2
    while step > 0:
        for i in range(step, len(units)):
            unit, j = units[i], i
            while j >= step and position[units[j - step]] > position[unit]:
                units[j] = units[j - step]
                j -= step
            units[j] = unit
        step //= 2


@kernel
def propose_within(units, segments, focus, chain, n_devices, module_share, rng):
    """Proposes a random move of units of the neighbourhood, of the kinds that `propose` draws.

    Args:
        units: `Units`. segments: `Segments`. focus: `Focus`.
        chain: `AnnealingChain`; the proposal is written.
        n_devices: int.
        module_share: probability of a move of a module.
        rng: generator.

    Returns:
        Number of units moved.
    """
    k, n_moved = focus.n[0], np.int64(0)
    unit = focus.members[0, draw(k, rng)]
    if rng.random() < module_share:
        target = draw_target(units, chain, unit, n_devices, rng)
        first, last = segments.module_ptr[unit], segments.module_ptr[unit + 1]
        if first == last:
            return move(units, chain, n_moved, unit, target)
        module = segments.module_item[first + draw(last - first, rng)]
        for at in range(segments.module_first[module], segments.module_end[module]):
            other = segments.sequences[-1, at]
            if focus.inside[other]:
                n_moved = move(units, chain, n_moved, other, target)
        return n_moved
    kind = rng.random()
    if kind < SEGMENT:
        target = draw_target(units, chain, unit, n_devices, rng)
        if kind < ONE:
            return move(units, chain, n_moved, unit, target)
        if kind < WITH_NEIGHBOURS:
            return near_within(units, focus, chain, unit, target)
        which = draw(len(focus.members), rng)
        length = int(np.exp(rng.random() * np.log(max(k / 2.0, 2.0))))
        at = draw(k, rng)
        first = at - draw(length + 1, rng)
        for i in range(max(first, 0), min(first + length + 1, k)):
            n_moved = move(units, chain, n_moved, focus.members[which, i], target)
        return n_moved
    source = device_of_unit(units, chain, unit)
    other = focus.members[0, draw(k, rng)]
    n_moved = move(units, chain, n_moved, unit, device_of_unit(units, chain, other))
    return move(units, chain, n_moved, other, source) if n_moved else np.int64(0)


@kernel
def near_within(units, focus, chain, unit, target):
    """Moves a unit with its neighbours on the same device, as far as they are in the neighbourhood.

    Args:
        units: `Units`. focus: `Focus`.
        chain: `AnnealingChain`; the proposal is written.
        unit, target: indices of the unit and the device, int.

    Returns:
        Number of units moved.
    """
    source = device_of_unit(units, chain, unit)
    n_moved = move(units, chain, np.int64(0), unit, target)
    for k in range(units.near_ptr[unit], units.near_ptr[unit + 1]):
        other = units.near_item[k]
        if focus.inside[other] and device_of_unit(units, chain, other) == source:
            n_moved = move(units, chain, n_moved, other, target)
    return n_moved


@kernel(entry=True)
def anneal_within(
    p,
    units,
    segments,
    focus,
    chain,
    scan,
    net,
    sieve,
    n,
    temperature,
    module_share,
    scale_s,
    track_memory,
    fresh,
    rng,
):
    """Does what `anneal` does, with moves in a neighbourhood that pass a filter.

    Args:
        p: `ProblemArrays`. units: `Units`. segments: `Segments`. focus: `Focus`.
        chain: `AnnealingChain`; written.
        scan: `Scan`; its counts and marks are written.
        net: `Net` of the filter; its scratch is written.
        sieve: `Sieve`; written.
        n: number of proposals to simulate, int.
        temperature, module_share, scale_s, track_memory: as in `anneal`.
        fresh: whether the current simulation is not that of the current placement, bool.
        rng: generator.
    """
    if fresh:
        run_moved(p, chain.device_of, chain.pair, np.int64(0), np.inf, chain.work_s)
        commit(chain.pair)
    step, done, drawn = chain.energy[0] * scale_s, 0, 0
    while done < n and drawn < MOST_DRAWS * n:
        drawn += 1
        n_moved = propose_within(units, segments, focus, chain, len(p.memory), module_share, rng)
        before = chain.energy[0]
        limit = before - temperature * np.log(1.0 - rng.random())
        if n_moved == 0:
            done += 1
            continue
        is_accepted = False
        if passes(units, chain, scan, net, sieve, n_moved, temperature, step):
            is_accepted = accept(p, chain, first_moved(units, chain, n_moved), limit, scale_s, track_memory)
            for i in range(n_moved):
                scan.tried[chain.moved[i]] += 1.0 / n_moved
                scan.won[chain.moved[i]] += (is_accepted and chain.energy[0] < before) / n_moved
            if len(sieve.log_gain):
                copy(sieve.x, sieve.log_x[done])
                sieve.log_gain[done] = before - chain.energy[0] if is_accepted else 0.0
            done += 1
        if not is_accepted:
            for i in range(n_moved - 1, -1, -1):
                put(units, chain, chain.moved[i], chain.back[i])
