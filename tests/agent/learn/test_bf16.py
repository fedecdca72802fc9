from __future__ import annotations

import torch

from graphs.system.performance import bf16_matmul


def test_coarse_products_are_near_exact_ones_and_end_with_the_block() -> None:
    generator = torch.Generator().manual_seed(0)
    left, right = torch.randn(300, 64, generator=generator), torch.randn(64, 64, generator=generator)
    exact = left @ right
    with bf16_matmul():
        coarse = left @ right
    assert torch.equal(left @ right, exact)
    torch.testing.assert_close(coarse, exact, rtol=0, atol=0.02 * float(exact.abs().max()))
