"""Choices of what a step is captured with and costed in; command lines read them without loading torch."""

from __future__ import annotations

from typing import NamedTuple

GRANULARITIES = ("op", "module", "block", "layer")
"""The granularities of a decision, the finest first."""
PRECISIONS = ("fp32", "tf32", "amp-bf16", "amp-fp16", "bf16", "fp8", "int8", "int4")
"""The precisions in which a step can be costed: matrix products and convolutions in fp32 or in TF32; under
autocast with bf16 or fp16 (amp); wholly in bf16; or in bf16 with frozen weights of 8 or 4 bits."""
WHOLE = ("bf16", "fp8", "int8", "int4")
"""Those of them that narrow the types of all tensors in fp32."""
KEPT_DTYPES = ("fp32", "bf16", "fp16")
"""The types that gradients and master weights can have."""


class Gpu(NamedTuple):
    """The GPUs that run a step.

    Attributes:
        capability: least compute capability.
        precision: precision that costs a step in fp32.
    """

    capability: float = 8.0
    precision: str | None = None


AMPERE = Gpu()


class Update(NamedTuple):
    """An optimizer's update of a parameter, per element of it.

    Attributes:
        flops: floating-point operations.
        passes: reads and writes of the weights, of the gradient and of intermediate results.
    """

    flops: int
    passes: int


OPTIMIZERS = {
    "adam": Update(flops=10, passes=3),
    "sgd": Update(flops=2, passes=3),
    "adamw": Update(flops=12, passes=3),
    "adafactor": Update(flops=15, passes=17),
}
"""The update of a parameter by each optimizer, whose states are read and written besides.

Adam reads it, its gradient and two moments and writes all but the gradient, as one fused kernel: 28 bytes per
float32 element. AdamW multiplies the weights by `1 - lr * weight_decay` too. SGD, without momentum, is one
`foreach_add`. Adafactor keeps the mean squares of rows and columns. Its passes are those of torch's kernels:
the norms of weights, of the gradient's rows and of its columns (1 each), the product of the factors (1), its
division, clamping and root (2 each), the product with the gradient (3), the norm of that (1) and the addition
(3); of its operations, norms and the addition take 2 per element and the other five 1.

Source: `torch/optim/{adam,adamw,sgd,_adafactor}.py` of PyTorch 2.13; Shazeer and Stern 2018, "Adafactor".
"""
OPTIMIZER_NAMES = (
    *OPTIMIZERS,
    *("muon", "rmsprop", "adagrad", "adadelta", "adamax", "nadam", "radam", "rprop", "asgd", "sparseadam"),
)
"""The optimizers of `torch.optim` that have names here."""
