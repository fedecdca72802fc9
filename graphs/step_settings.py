"""Choices of what a step is captured with and costed in; command lines read them without loading torch."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

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


@dataclass(frozen=True)
class Update:
    """An optimizer's update of a parameter.

    Attributes:
        flops: floating-point operations per element.
        passes: reads and writes per element of the weights, the gradient, what is kept of each element, and
            intermediate results.
        states: values kept per element.
        factored: whether a matrix keeps one value per row and one per column, and anything else `states`.
    """

    optimizer: str
    flops: int
    passes: int
    states: int
    factored: bool = False

    def state_bytes(self, tensor: Tensor) -> int:
        """Bytes that the optimizer keeps of a parameter."""
        if not self.factored or tensor.dim() < 2:
            return self.states * tensor.nbytes
        *batch, rows, columns = tensor.shape
        return prod(batch) * (rows + columns) * tensor.element_size()

    def update_flops(self, tensor: Tensor, share: float) -> float:
        """Floating-point operations of updating a share of a parameter's elements."""
        return share * self.flops * tensor.numel() * (2 if tensor.is_complex() else 1)

    def update_bytes(self, tensor: Tensor, share: float) -> float:
        """Memory traffic in bytes of updating a share of a parameter; factors are read and written."""
        factors = 2 * self.state_bytes(tensor) if self.factored and tensor.dim() > 1 else 0
        return share * (self.passes * tensor.nbytes + factors)


OPTIMIZERS = {
    "adam": Update("adam", flops=10, passes=7, states=2),
    "sgd": Update("sgd", flops=2, passes=3, states=0),
    "adamw": Update("adamw", flops=12, passes=7, states=2),
    "adafactor": Update("adafactor", flops=15, passes=17, states=1, factored=True),
}
"""The update of a parameter by each optimizer, with the default settings of `torch.optim`.

Adam reads it, its gradient and two moments and writes all but the gradient, as one fused kernel: 28 bytes per
float32 element. AdamW multiplies the weights by `1 - lr * weight_decay` too. SGD, without momentum, is one
`foreach_add`. Adafactor keeps the mean squares of rows and columns. Its passes are those of torch's kernels:
the norms of weights, of the gradient's rows and of its columns (1 each), the product of the factors (1), its
division, clamping and root (2 each), the product with the gradient (3), the norm of that (1) and the addition
(3); of its operations, norms and the addition take 2 per element and the other five 1.

Source: `torch/optim/{adam,adamw,sgd,_adafactor}.py` of PyTorch 2.13; Shazeer and Stern 2018, "Adafactor".
"""
OPTIMIZER_NAMES = tuple(OPTIMIZERS)
