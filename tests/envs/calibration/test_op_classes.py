"""Classes of ops."""

from __future__ import annotations

import pytest

from envs.calibration.op_classes import CLASSES, op_class


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("aten.mm", "gemm"),
        ("aten.addmm.default", "gemm"),
        ("aten.bmm", "bmm"),
        ("aten.convolution", "conv"),
        ("aten.convolution_backward", "conv"),
        ("aten._scaled_dot_product_flash_attention_for_cpu_backward", "attention"),
        ("aten._log_softmax_backward_data", "softmax"),
        ("aten.native_layer_norm_backward", "norm"),
        ("aten.norm", "reduction"),
        ("aten.gelu_backward", "elementwise"),
        ("aten.sum", "reduction"),
        ("aten.embedding_dense_backward", "gather"),
        ("aten.index_add", "gather"),
        ("optim.adam", "optimizer"),
        ("aten.clone", "move"),
        ("aten.copy_", "move"),
        ("aten._fft_c2c", "other"),
        ("", "other"),
    ],
)
def test_known_classes(op_type: str, expected: str) -> None:
    assert op_class(op_type) == expected
    assert expected in CLASSES
