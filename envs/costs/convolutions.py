"""Convolutions as cuDNN computes them in fp32: an implicit matrix product, or Winograd in one kernel or four.

Winograd's algorithms compute tiles of the image and save products; an image that is no whole number of tiles
is padded, which is why its height and width matter. The fastest of the three is taken: cuDNN chooses by rules
of thumb, which agree in two of three cases.

Sources: Chetlur et al., "cuDNN", 2014 (the implicit product); Lavin and Gray, "Fast Algorithms for
Convolutional Neural Networks", CVPR 2016 (F(2x2, 3x3) and F(4x4, 3x3)); tiles, blocks and their arrangement
are as the names and grids of the kernels in the NeuSight data say.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from envs.costs.efficiency import Machine, MatmulModel, MatmulWork, Tiles, both
from graphs.system.array_types import FloatArray

CONVOLUTION_TILES = ((128, 128), (128, 64), (128, 32))
"""Output positions and channels that one block of the implicit product computes."""
FUSED_SIDE, FUSED_PRODUCTS = 2, 16
"""Outputs along a side of a tile of F(2x2, 3x3), and products for a tile."""
FUSED_BLOCK = (4, 8)
"""Tiles down and across the image that one block of the single kernel computes, of one sample."""
FUSED_CHANNELS = 32
"""Output channels that it computes."""
SPLIT_SIDE, SPLIT_PRODUCTS = 4, 36
"""The same of F(4x4, 3x3), the algorithm of four kernels: it is as many matrix products."""
KERNEL = 9


@dataclass(frozen=True, kw_only=True)
class ConvolutionModel(MatmulModel):
    """A model of the time of convolutions.

    Attributes:
        fused: share of the peak flops/s that Winograd's algorithm in one kernel reaches.
        fused_prologue: extra channels of input that each of its blocks takes to begin and end.
        transforms: share of the memory bandwidth that the transforms of that in four kernels achieve.
    """

    fused: float
    fused_prologue: float
    transforms: float

    def tiles(self, machine: Machine) -> Tiles:
        """Returns those of the kernels for convolutions."""
        return CONVOLUTION_TILES

    def seconds(self, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds of convolutions without their launch, (n,)."""
        seconds = super().seconds(work, machine)
        chosen = np.flatnonzero(work.image.all(axis=1))
        if len(chosen):
            some = work.select(chosen)
            winograd = np.minimum(self._fused(some, machine), self._split(some, machine))
            seconds[chosen] = np.minimum(seconds[chosen], winograd)
        return seconds

    def _fused(self, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds of Winograd in one kernel, (n,)."""
        batch, _, n, k = work.shape.T
        down, across = (np.ceil(np.ceil(work.image / FUSED_SIDE) / FUSED_BLOCK)).T
        blocks = batch * images(work) * down * across * np.ceil(n / FUSED_CHANNELS)
        tiles = FUSED_BLOCK[0] * FUSED_BLOCK[1]
        channels = k / KERNEL
        full = blocks / machine.multiprocessors
        waves = self.waves * np.ceil(full) + (1 - self.waves) * np.maximum(full, 1)
        flops = 2 * FUSED_PRODUCTS * tiles * FUSED_CHANNELS * (channels + self.fused_prologue)
        compute_s = waves * flops * machine.multiprocessors / (work.flops_per_s * self.limited(self.fused))
        # The transformed weights are written and read; a block reads the tiles and weights of its products.
        weights = 2 * FUSED_PRODUCTS * batch * channels * n * work.item_bytes
        memory_s = (work.bytes_moved + weights) / (machine.bytes_per_s * self.traffic)
        reread = blocks * FUSED_PRODUCTS * (tiles + FUSED_CHANNELS) * channels * work.item_bytes
        return both(compute_s, memory_s + reread / (machine.bytes_per_s * self.cache), self.overlap)

    def _split(self, work: MatmulWork, machine: Machine) -> FloatArray:
        """Computes the seconds of Winograd in four kernels, (n,): three transforms around matrix products."""
        batch, _, n, k = work.shape.T
        tiles, channels = images(work) * np.ceil(work.image / SPLIT_SIDE).prod(axis=1), k / KERNEL
        shape = np.stack([batch * SPLIT_PRODUCTS, tiles, n, channels], axis=1)
        elements = SPLIT_PRODUCTS * batch * (tiles * (channels + n) + channels * n)
        transformed = elements * work.item_bytes
        products = replace(work, shape=shape, bytes_moved=transformed)
        transforms_s = (work.bytes_moved + transformed) / (machine.bytes_per_s * self.transforms)
        return transforms_s + super().seconds(products, machine)


def images(work: MatmulWork) -> FloatArray:
    """Returns the samples that convolutions have: output positions over those of one image, (n,)."""
    return work.shape[:, 1] / work.image.prod(axis=1)
