"""Complex tensors: models that compute with them, their bytes and their views."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture
from tests.graphs.capture.capture_cases import Calls, op, readers


def turned_phase(layer: nn.Module, x: Tensor) -> Tensor:
    spectrum = torch.fft.rfft(layer(x))
    return torch.fft.irfft(spectrum * torch.exp(1j * spectrum.angle()), n=4)


def polar(layer: nn.Module, x: Tensor) -> Tensor:
    return torch.polar(layer(x).abs(), layer(x)).abs()


def conjugates(layer: nn.Module, x: Tensor) -> Tensor:
    z = torch.view_as_complex(layer(x).reshape(-1, 2, 2))
    return torch.view_as_real(z * z.conj())


def imaginary(layer: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
    z = torch.complex(layer(x), layer(x))
    return (z @ z.mH).real, z.conj().imag.exp()


def complex_output(layer: nn.Module, x: Tensor) -> Tensor:
    return (layer(x) * 1j).conj()


def complex_scalar(layer: nn.Module, x: Tensor) -> Tensor:
    return (layer(x) * 1j).sum()


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(
    "function", [turned_phase, polar, conjugates, imaginary, complex_output, complex_scalar]
)
def test_complex_models_are_captured(function: Callable[..., Any], training: bool) -> None:
    graph = capture(Calls(function), torch.zeros(2, 4), training=training)
    assert "layer/addmm" in graph.op_names
    assert ("adam/layer.weight" in graph.op_names) == training
    assert np.isfinite(graph.flops).all()


def test_complex_tensors_take_eight_bytes_an_element_through_their_views() -> None:
    graph = capture(Calls(turned_phase), torch.zeros(2, 4), training=False)
    spectrum = 2 * 3 * 8  # three frequencies of each of two signals
    made = {name: graph.tensor_bytes[graph.outputs.row(op(graph, name))].tolist() for name in graph.op_names}
    assert made["_fft_r2c"] == made["exp"] == made["mul_1"] == [spectrum]
    assert made["angle"] == [spectrum / 2]
    assert graph.bytes_moved[op(graph, "mul_1")] == 3 * spectrum
    assert readers(graph, "_fft_r2c") == ["angle", "mul_1"]


def test_a_conjugate_is_a_view_until_it_is_computed() -> None:
    graph = capture(Calls(imaginary), torch.zeros(2, 4))
    assert "aten._conj" not in graph.op_types
    assert readers(graph, "complex") == ["mm", "clone", "gradients/mm", "gradients/mm_1"]
    assert readers(graph, "clone")[0] == "exp"  # the negated imaginary part
    turned = capture(Calls(turned_phase), torch.zeros(2, 4))
    assert "gradients/clone" in readers(turned, "_fft_r2c")


def test_a_complex_parameter_is_updated_as_two_numbers() -> None:
    module = Calls(lambda layer, x: layer.scale * layer(x))
    module.layer.scale = nn.Parameter(torch.zeros(4, dtype=torch.complex64))
    graph = capture(module, torch.zeros(2, 4))
    assert graph.resident_bytes[op(graph, "layer.scale")] == 4 * 4 * 8
    assert graph.flops[op(graph, "adam/layer.scale")] == 10 * 4 * 2
