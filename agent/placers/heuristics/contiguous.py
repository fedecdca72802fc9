"""Pipeline stages: one segment of the program order per device."""

from __future__ import annotations

import numpy as np

from agent.placers.base import SearchState, placer
from agent.placers.units import unit_seconds, units_by_layer, units_by_program, units_depth_first
from graphs.limits import MIN_SECONDS
from graphs.system.array_types import FloatArray, IntArray


@placer("contiguous")
def contiguous(search: SearchState, rng: np.random.Generator) -> None:
    """Cuts the units into 1 to n_devices segments of equal time and keeps the best cut.

    A segment is proportional to its device's speed. The units are cut in program order, in layer order
    (backward beside forward) and, if ops name no modules, in depth-first order. If no such cut is feasible,
    cuts proportional to memory are tried.
    """
    problem = search.problem
    seconds = unit_seconds(problem)
    speed = 1.0 / np.maximum(seconds.sum(axis=0), MIN_SECONDS)
    orders = [units_by_program(problem.graph), units_by_layer(problem.graph)]
    if not any(problem.graph.modules):
        orders.append(units_depth_first(problem.graph))
    _try_cuts(search, orders, seconds.mean(axis=1), speed)
    if not search.is_feasible:
        _try_cuts(search, orders, problem.footprint_bytes, problem.cluster.memory_bytes)


def _try_cuts(search: SearchState, orders: list[IntArray], weight: FloatArray, share: FloatArray) -> None:
    largest_first = np.argsort(-share, kind="stable")
    for n_stages in range(1, len(share) + 1):
        devices = np.sort(largest_first[:n_stages])
        for order in orders:
            search.score_units(cut(order, weight, devices, share[devices])[None])


def cut(order: IntArray, weight: FloatArray, devices: IntArray, share: FloatArray) -> IntArray:
    """Cuts an order into consecutive segments whose weights are in proportion to `share`.

    Args:
        order: units in the order to cut, int (n_units,).
        weight: weight of each unit, not negative, (n_units,).
        devices: device of each segment, int (n_stages,).
        share: share of each segment, positive, (n_stages,).

    Returns:
        Device of each unit, int (n_units,).
    """
    ordered = weight[order]
    middle = np.cumsum(ordered) - ordered / 2
    ends = np.cumsum(share) / share.sum() * ordered.sum()
    device_of = np.empty(len(order), dtype=np.int64)
    device_of[order] = devices[np.searchsorted(ends[:-1], middle, side="right")]
    return device_of
