"""Classes of ops."""

from __future__ import annotations

import pytest

from envs.costs.op_classes import CLASSES, op_class, traffic_factor


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


@pytest.mark.parametrize(
    ("op_type", "expected"),
    [
        ("aten.native_layer_norm_backward.default", 5 / 3),
        ("aten.native_layer_norm", 1),
        ("aten._native_batch_norm_legit", 1.5),
        ("aten._native_batch_norm_legit_no_training", 1),
        ("aten.native_dropout_backward", 2.5),
        ("aten.nll_loss_backward", 0.5),
        ("aten.add", 1),
        ("mine", 1),
    ],
)
def test_some_kernels_move_more_or_less_than_their_operands_and_results(
    op_type: str, expected: float
) -> None:
    assert traffic_factor(op_type) == expected
