"""Matrix products in bfloat16 on CPU."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def bf16_matmul() -> Iterator[None]:
    """Rounds the factors of float32 matrix products on CPU to bfloat16 within the block; sums stay float32.

    Processors without bfloat16 instructions ignore it. On those that have them products take 0.3 to 0.5 of
    the time, and the gradients of sampled decisions are far noisier than the rounding.
    """
    matmul = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = matmul.fp32_precision
    matmul.fp32_precision = "bf16"
    try:
        yield
    finally:
        matmul.fp32_precision = before
