"""The parameters of efficiency models that a fit moves: where each begins, and its bounds."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Parameter:
    """A parameter of a fit: its start, its bounds, and how strongly it is held at its start."""

    start: float
    low: float
    high: float
    stiffness: float = 0.1


MATMUL = {
    "launch_s": Parameter(3e-5, 5e-6, 3e-4),
    "efficiency": Parameter(0.9, 0.2, 2.0),
    "sustained": Parameter(1.0, 0.1, 2.5),
    "traffic": Parameter(0.8, 0.4, 1.0),
    "prologue": Parameter(3.0, 0.1, 150.0, 0.03),
    "tile_cost": Parameter(5.0, 0.4, 60.0, 0.05),
    "waves": Parameter(0.5, 0.05, 0.98, 0.05),
    "overlap": Parameter(3.0, 1.3, 12.0, 0.05),
    "cache": Parameter(3.0, 0.3, 20.0, 0.05),
    "deep": Parameter(0.05, 0.005, 4.0, 0.05),
}
CONVOLUTION = MATMUL | {
    "tile_cost": Parameter(8.0, 0.4, 60.0, 0.2),
    "fused": Parameter(0.8, 0.2, 2.5),
    "fused_prologue": Parameter(12.0, 0.1, 200.0, 0.03),
    "transforms": Parameter(0.7, 0.1, 2.0),
}
CACHES = {
    "launch_s": Parameter(5e-6, 1e-7, 1e-3, 0.02),
    "efficiency": Parameter(0.9, 0.02, 4.0, 0.02),
    "cached": Parameter(8.0, 1.0, 100.0, 0.05),
    "room_bytes": Parameter(3e7, 1e5, 1e10, 0.02),
    "fade": Parameter(2.0, 0.5, 8.0, 0.05),
}
"""The parameters of a device of one's own, whose caches decide."""
