"""Names of what a step can be captured with and costed in; command lines read them without loading torch."""

from __future__ import annotations

from dataclasses import dataclass

OPTIMIZER_NAMES = ("adam", "sgd", "adamw", "adafactor")
"""Optimizers whose updates a captured step can end with."""
GRANULARITIES = ("op", "module", "block", "layer")
"""The granularities of a decision, the finest first."""
PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "int4")
"""The precisions in which a step can be costed: matrix products and convolutions in fp32 or in TF32; under
autocast with bf16 or fp16 (amp); wholly in bf16; or, for inference, in bf16 with weights of 4 bits."""


@dataclass(frozen=True)
class Gpu:
    """The GPUs whose kernels a capture takes.

    Attributes:
        capability: the least compute capability among them, such as 7.0 of V100 and 8.0 of Ampere.
        precision: from `PRECISIONS`, in which a step in 32-bit floats is costed; None = as it is.
    """

    capability: float = 8.0
    precision: str | None = None
