"""Placement by memory alone: fills one device after the other."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.memory_limits import MemoryLimits, retry_until_feasible
from agent.placers.units import units_by_layer
from graphs.system.array_types import FloatArray, IntArray


@placer("memory-fill")
def memory_fill(search: SearchState, rng: np.random.Generator) -> None:
    """Fills the devices one after the other, layer by layer, with no cost model.

    Source: as `accelerate.infer_auto_device_map` does for inference, here with training memory: weights,
    gradients, optimizer state and saved activations.
    """
    order, footprint_bytes = units_by_layer(search.problem.graph), search.problem.footprint_bytes
    first_feasible(search, lambda limit_bytes: fill(order, footprint_bytes, limit_bytes))


@placer("m-topo")
def m_topo(search: SearchState, rng: np.random.Generator) -> None:
    """Fills the devices one after the other to an equal share of the memory plus its largest unit.

    Source: m-TOPO of Baechi (Jeon et al., SoCC 2020).
    """
    order, footprint_bytes = units_by_layer(search.problem.graph), search.problem.footprint_bytes
    even_bytes = footprint_bytes.sum() / search.problem.n_devices + footprint_bytes.max()
    first_feasible(
        search, lambda limit_bytes: fill(order, footprint_bytes, np.minimum(limit_bytes, even_bytes))
    )


def fill(order: IntArray, footprint_bytes: FloatArray, limit_bytes: FloatArray) -> IntArray:
    """Fills each device with units in `order` up to its limit; the last device takes the rest.

    Args:
        order: units, int (n_units,).
        footprint_bytes: memory of each unit, (n_units,).
        limit_bytes: limit of each device, (n_devices,).

    Returns:
        Device of each unit, int (n_units,).
    """
    device_of = np.empty(len(order), dtype=np.int64)
    device, used = 0, 0.0
    for unit in order:
        while device < len(limit_bytes) - 1 and used + footprint_bytes[unit] > limit_bytes[device]:
            device, used = device + 1, 0.0
        device_of[unit] = device
        used += footprint_bytes[unit]
    return device_of


def first_feasible(search: SearchState, plan: Callable[[FloatArray], IntArray]) -> None:
    """Scores plans for less and less memory until the best placement of the search is feasible.

    Args:
        plan: maps the bytes it may count on per device, (n_devices,), to the device of each unit, int
            (n_units,); it may change the array it gets.
    """

    def place_within(limits: MemoryLimits) -> IntArray | None:
        unit_device = plan(limits.limit_bytes.copy())
        search.score_units(unit_device[None])
        return None if search.is_feasible or not search.left else unit_device[search.problem.graph.unit_of]

    retry_until_feasible(search.problem, place_within)
