"""Efficiency models: the seconds of ops as work over what a device achieves of its peaks.

A matrix product is computed in tiles, which the multiprocessors share in waves. All else is memory traffic.
Both models are vectorised over ops, and have few parameters, which are fitted to measured ops.

Source: the tiles and waves follow NVIDIA, "Matrix Multiplication Background User's Guide" (DU-09799-001);
predicting achieved throughput rather than time is from Lee et al., "NeuSight", ASPLOS 2025.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from graphs.system.array_types import FloatArray, IntArray

Tiles = tuple[tuple[int, int], ...]

TILES: Tiles = (
    *((256, 128), (128, 256), (128, 128), (128, 64), (64, 128)),
    *((64, 64), (64, 32), (32, 64), (32, 32)),
)
"""Rows and columns of the output that one block of threads computes, as the kernels of cuBLAS do."""
CAP_SHARPNESS = 8.0
LONG_K, LONG_K_STEEPNESS = 10000.0, 4.0
MANY_ROWS, ROWS_POWER = 4096.0, 0.25
"""Constants of `deep` in `MatmulModel`; on Pascal, products of many long rows take up to thrice as long."""


@dataclass(frozen=True, kw_only=True)
class MatmulModel:
    """A model of the time of matrix products, `batch` times (m, k) @ (k, n), by the fastest tile size.

    In tiles of (rows, columns), with `size = rows * columns / (rows + columns)`:

        blocks     = batch * ceil(m / rows) * ceil(n / columns)
        full       = blocks / multiprocessors
        n_waves    = waves * ceil(full) + (1 - waves) * max(full, 1)
        share      = efficiency * size / (size + tile_cost)
        achieved   = (share**-8 + sustained**-8) ** (-1/8)
        slowing    = 1 + deep / (1 + (k / LONG_K * min(m / MANY_ROWS, 1)**ROWS_POWER) ** -LONG_K_STEEPNESS)
        tile_flops = 2 * rows * columns * (k + prologue)
        compute_s  = slowing * n_waves * tile_flops / (achieved * flops_per_s / multiprocessors)
        reread     = blocks * k * (rows + columns) * item_bytes
        traffic_s  = bytes_moved / (traffic * bytes_per_s) + reread / (cache * bytes_per_s)
        seconds    = (compute_s**overlap + traffic_s**overlap) ** (1 / overlap)

    Attributes:
        launch_s: seconds of a product of no work, with what the host adds when each op is timed alone.
        efficiency: share of the peak flops/s that a large tile reaches without a power limit.
        sustained: share of the peak flops/s that the power limit allows.
        traffic: share of the memory bandwidth that is achieved.
        prologue: steps of k by which beginning and ending lengthen each tile.
        tile_cost: `size` of a tile that reaches half of `efficiency`.
        waves: weight of whole waves, 0 to 1; 1 = the last wave takes as long as a full one.
        overlap: order of the norm that adds arithmetic and traffic, 1 or more; 1 = they do not overlap.
        cache: speed at which tiles reread their operands, as a multiple of the memory bandwidth.
        deep: greatest share of time that a long k adds to the arithmetic.
        burst: factor of `sustained` in short ops of a board that has rested, 1 or more.
        burst_s: seconds after which half of that, in logarithms, is gone.
    """

    launch_s: float
    efficiency: float
    sustained: float
    traffic: float
    prologue: float
    tile_cost: float
    waves: float
    overlap: float
    cache: float
    deep: float
    burst: float = 1.0
    burst_s: float = 0.1

    def tiles(self, machine: Machine) -> Tiles:
        """Returns rows and columns of the tiles that there are kernels for."""
        return TILES

    def seconds(self, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds of matrix products without their launch, (n,)."""
        batch, m, n, k = work.shape.T
        long = np.maximum(k, 1.0) / LONG_K * np.clip(m / MANY_ROWS, 1 / MANY_ROWS, 1) ** ROWS_POWER
        slowing = 1 + self.deep / (1 + long**-LONG_K_STEEPNESS)
        memory_s = work.bytes_moved / (machine.bytes_per_s * self.traffic)
        best = np.full(len(m), np.inf)
        for rows, columns in self.tiles(machine):
            blocks = batch * np.ceil(m / rows) * np.ceil(n / columns)
            full = blocks / machine.multiprocessors
            waves = self.waves * np.ceil(full) + (1 - self.waves) * np.maximum(full, 1)
            rate = work.flops_per_s / machine.multiprocessors * self.achieved(rows, columns)
            compute_s = slowing * waves * 2 * rows * columns * (k + self.prologue) / rate
            reread = blocks * k * (rows + columns) * work.item_bytes
            traffic_s = memory_s + reread / (machine.bytes_per_s * self.cache)
            best = np.minimum(best, both(compute_s, traffic_s, self.overlap))
        return best

    def timed_alone(self, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds that products take which are timed one by one, (n,), with their launch."""
        steady = self.seconds(work, machine)
        if self.burst > 1:
            fresh = replace(self, sustained=self.burst * self.sustained).seconds(work, machine)
            share = 1 / (1 + (steady / self.burst_s) ** 2)
            steady = steady ** (1 - share) * fresh**share
        return self.launch_s + steady

    def seconds_of_flops(self, flops: FloatArray, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds of large products of unknown shape, (n,): as many waves as it takes."""
        compute_s = flops / (work.flops_per_s * self.achieved(*self.tiles(machine)[0]))
        return both(compute_s, work.bytes_moved / (machine.bytes_per_s * self.traffic), self.overlap)

    def achieved(self, rows: int, columns: int) -> float:
        """Returns the share of the peak flops/s that tiles of a size reach."""
        size = rows * columns / (rows + columns)
        return self.limited(self.efficiency * size / (size + self.tile_cost))

    def limited(self, share: float) -> float:
        """Returns what the power limit leaves of a share of the peak."""
        return float((share**-CAP_SHARPNESS + self.sustained**-CAP_SHARPNESS) ** (-1 / CAP_SHARPNESS))


@dataclass(frozen=True, kw_only=True)
class BatchedModel(MatmulModel):
    """A model of the time of batched products, for which cuBLAS has fewer kernels."""

    def tiles(self, machine: Machine) -> Tiles:
        """Returns those that the machine has for batched products."""
        return machine.batched_tiles


@dataclass(frozen=True)
class TrafficModel:
    """A model of the time of memory traffic.

        row_limit = l2_bytes / (multiprocessors * in_flight)
        passes    = 1 + reread / (1 + (row_bytes / row_limit) ** -steepness)
        speedup   = 1 + (cached - 1) / (1 + (bytes_moved / room_bytes) ** fade)
        seconds   = bytes_moved * passes / (efficiency * speedup * bytes_per_s)

    Attributes:
        launch_s: seconds of an op of no work, with what the host adds when each op is timed alone.
        efficiency: share of the memory bandwidth that is achieved with short rows and large tensors.
        reread: share of the traffic of one pass that long rows add.
        in_flight: rows that each multiprocessor reads at a time.
        steepness: power of the length of rows by which `reread` sets in.
        cached: speed of an op whose data the caches hold, as a multiple of one that streams from memory.
        room_bytes: bytes moved with half of the gain of `cached`; fitted, so allocation counts too.
        fade: power of the traffic by which that gain ends.
    """

    launch_s: float
    efficiency: float
    reread: float = 0.0
    in_flight: float = 20.0
    steepness: float = 4.0
    cached: float = 1.0
    room_bytes: float = 1e8
    fade: float = 2.0

    def seconds(self, bytes_moved: FloatArray, row_bytes: FloatArray, machine: Machine) -> FloatArray:
        """Computes the seconds of ops without their launch, (n,).

        Args:
            bytes_moved: memory traffic in bytes, (n,).
            row_bytes: bytes of one row, (n,).
        """
        row_limit = machine.l2_bytes / (machine.multiprocessors * self.in_flight)
        passes = 1 + self.reread / (1 + (np.maximum(row_bytes, 1.0) / row_limit) ** -self.steepness)
        speedup = 1 + (self.cached - 1) / (1 + (bytes_moved / self.room_bytes) ** self.fade)
        return bytes_moved * passes / (machine.bytes_per_s * self.efficiency * speedup)


Model = MatmulModel | TrafficModel


@dataclass(frozen=True)
class Machine:
    """The properties of a device that the models need.

    Attributes:
        bytes_per_s: memory bandwidth.
        multiprocessors: blocks of a product that it computes at a time.
        l2_bytes: size of its last cache.
        batched_tiles: rows and columns of the tiles of its kernels for batched products.
    """

    bytes_per_s: float
    multiprocessors: int
    l2_bytes: float
    batched_tiles: Tiles = TILES


@dataclass(frozen=True)
class MatmulWork:
    """Matrix products.

    Attributes:
        shape: batch, m, n and k, (n, 4).
        bytes_moved: memory traffic in bytes, (n,).
        item_bytes: bytes of an element, (n,).
        flops_per_s: peak of the device for the dtype, (n,).
        image: height and width of the output of convolutions that may run as Winograd's, else 0, (n, 2).
    """

    shape: FloatArray
    bytes_moved: FloatArray
    item_bytes: FloatArray
    flops_per_s: FloatArray
    image: FloatArray

    def select(self, rows: IntArray) -> MatmulWork:
        """Returns some of the products, by index."""
        columns = (self.shape, self.bytes_moved, self.item_bytes, self.flops_per_s, self.image)
        return MatmulWork(*(column[rows] for column in columns))


def both(first: FloatArray, second: FloatArray, order: float) -> FloatArray:
    """Adds two times that overlap in part, elementwise: a norm of order 1 (their sum) or more."""
    longer, shorter = np.maximum(first, second), np.minimum(first, second)
    share = np.divide(shorter, longer, out=np.zeros_like(longer), where=longer > 0)
    return longer * (1 + share**order) ** (1 / order)
