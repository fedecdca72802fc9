"""Names of what a step can be captured with and costed in; command lines read them without loading torch."""

from __future__ import annotations

from typing import NamedTuple

OPTIMIZER_NAMES = ("adam", "sgd", "adamw", "adafactor")
"""Optimizers whose updates a captured step can end with."""
GRANULARITIES = ("op", "module", "block", "layer")
"""The granularities of a decision, the finest first."""
PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp8", "int8", "int4")
"""The precisions in which a step can be costed: matrix products and convolutions in fp32 or in TF32; under
autocast with bf16 or fp16 (amp); wholly in bf16; or in bf16 with frozen weights of 8 or 4 bits."""


class Gpu(NamedTuple):
    """The least compute capability of the GPUs that run a step, and the precision that costs one in fp32."""

    capability: float = 8.0
    precision: str | None = None


AMPERE = Gpu()
