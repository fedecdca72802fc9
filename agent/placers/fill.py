"""Placement by memory alone: fill one device, go on to the next."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.memory_limits import MAX_ATTEMPTS, next_limit
from agent.placers.units import units_by_layer
from envs.simulator.simulate import simulate_problem
from graphs.op_graph import FloatArray, IntArray


@placer("memory-fill")
def memory_fill(search: SearchState, rng: np.random.Generator) -> None:
    """Fill the devices one after the other, layer by layer, with no cost model.

    Source: what `accelerate.infer_auto_device_map` does for inference, here with training memory: weights,
    gradients, optimizer state and saved activations.
    """
    order, held = units_by_layer(search.problem.graph), search.problem.footprint_bytes
    first_fit(search, lambda limit_bytes: fill(order, held, limit_bytes))


@placer("m-topo")
def m_topo(search: SearchState, rng: np.random.Generator) -> None:
    """Fill the devices one after the other to an equal share of the memory plus its largest unit.

    Source: m-TOPO of Baechi (Jeon et al., SoCC 2020).
    """
    order, held = units_by_layer(search.problem.graph), search.problem.footprint_bytes
    even_bytes = held.sum() / search.problem.n_devices + held.max()
    first_fit(search, lambda limit_bytes: fill(order, held, np.minimum(limit_bytes, even_bytes)))


def fill(order: IntArray, held: FloatArray, limit_bytes: FloatArray) -> IntArray:
    """Device of each unit when every device takes units in `order` up to its limit; the last takes the rest.

    Args:
        order: units, int (n_units,).
        held: bytes of each unit, (n_units,).
        limit_bytes: (n_devices,).

    Returns:
        int (n_units,).
    """
    device_of = np.empty(len(order), dtype=np.int64)
    device, used = 0, 0.0
    for unit in order:
        while device < len(limit_bytes) - 1 and used + held[unit] > limit_bytes[device]:
            device, used = device + 1, 0.0
        device_of[unit] = device
        used += held[unit]
    return device_of


def first_fit(search: SearchState, plan: Callable[[FloatArray], IntArray]) -> None:
    """Score plans for ever less memory until one fits.

    Args:
        plan: bytes it may count on per device (n_devices,) -> device of each unit, int (n_units,).
    """
    memory_bytes = search.problem.cluster.memory_bytes
    limit_bytes = memory_bytes
    for trial in range(1, MAX_ATTEMPTS + 1):
        units = plan(limit_bytes.copy())
        search.score_units(units[None])
        if search.fits or not search.left or trial == MAX_ATTEMPTS:
            return
        peak_bytes = simulate_problem(search.problem, units[search.problem.graph.unit_of]).peak_bytes
        limit_bytes = next_limit(trial, limit_bytes, peak_bytes, memory_bytes)
