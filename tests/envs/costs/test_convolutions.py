"""Convolutions as an implicit product and by Winograd's algorithms: known answers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.costs.convolutions import ConvolutionModel
from envs.costs.efficiency import Machine, MatmulWork

IDEAL = ConvolutionModel(
    launch_s=0.0,
    efficiency=1.0,
    sustained=1e3,
    traffic=1e9,
    prologue=0.0,
    tile_cost=0.0,
    waves=0.0,
    overlap=50.0,
    cache=1e9,
    deep=0.0,
    fused=1e-3,
    fused_prologue=0.0,
    transforms=1e9,
)
"""At the peak, in no waves and with no traffic; Winograd's algorithm in one kernel is far slower."""
FUSED = replace(IDEAL, fused=1.0, transforms=1e-9)
"""The same, where that in one kernel is at the peak and that in four far slower."""
MACHINE = Machine(bytes_per_s=1e9, multiprocessors=10, l2_bytes=1e6)
PEAK = 1e12


def work(
    samples: int, side: int, channels: int, *, image: bool = True, bytes_moved: float = 0.0
) -> MatmulWork:
    """3x3 convolutions of as many channels as before, padded to keep the image."""
    return MatmulWork(
        np.array([[1.0, samples * side * side, channels, 9 * channels]]),
        np.array([bytes_moved]),
        np.array([4.0]),
        np.array([PEAK]),
        np.full((1, 2), float(side if image else 0)),
    )


def flops(samples: int, side: int, channels: int) -> float:
    return 2.0 * samples * side**2 * channels * 9 * channels


@pytest.mark.parametrize(("model", "saved"), [(IDEAL, 144 / 36), (FUSED, 36 / 16)])
def test_winograd_saves_products(model: ConvolutionModel, saved: float) -> None:
    (seconds,) = model.seconds(work(64, 32, 512), MACHINE)
    assert seconds == pytest.approx(flops(64, 32, 512) / PEAK / saved, rel=1e-3)


def test_without_an_image_nothing_is_saved() -> None:
    (seconds,) = IDEAL.seconds(work(64, 32, 512, image=False), MACHINE)
    assert seconds == pytest.approx(flops(64, 32, 512) / PEAK, rel=1e-3)


def test_the_direct_product_is_taken_where_winograd_is_slower() -> None:
    slow = replace(IDEAL, transforms=1e-9)
    assert slow.seconds(work(64, 32, 512), MACHINE) == slow.seconds(work(64, 32, 512, image=False), MACHINE)


def test_images_are_padded_to_whole_tiles() -> None:
    """Of 4x4 outputs, of which 5x5 takes four; and a block of the single kernel has 8x16."""
    five, eight, nine = (IDEAL.seconds(work(512, side, 512), MACHINE)[0] for side in (5, 8, 9))
    assert five == pytest.approx(eight)
    assert nine == pytest.approx(eight * 9 / 4)
    eight, fifteen, sixteen = (FUSED.seconds(work(512, side, 512), MACHINE)[0] for side in (8, 15, 16))
    assert fifteen == pytest.approx(sixteen)
    assert sixteen == pytest.approx(2 * eight)
    four, tall = (FUSED.seconds(on_image(*image), MACHINE)[0] for image in ((4, 16), (8, 16)))
    assert four == pytest.approx(tall)


def on_image(height: int, width: int) -> MatmulWork:
    """512 samples of 512 channels."""
    square = work(512, 16, 512)
    shape = square.shape.copy()
    shape[:, 1] = 512 * height * width
    return replace(square, shape=shape, image=np.array([[height, width]], dtype=np.float64))


def test_the_single_kernel_writes_and_reads_transformed_weights() -> None:
    model = replace(FUSED, traffic=0.5, efficiency=1e-3)
    (seconds,) = model.seconds(work(1, 16, 4096), Machine(1e10, 10, 1e6))
    assert seconds == pytest.approx(2 * 16 * 4096**2 * 4 / 0.5e10, rel=0.01)


def test_blocks_of_the_single_kernel_have_32_channels() -> None:
    few, many = (FUSED.seconds(replace_channels(outputs), MACHINE)[0] for outputs in (33, 64))
    assert few == pytest.approx(many)


def replace_channels(outputs: int) -> MatmulWork:
    wide = work(512, 16, 512)
    shape = wide.shape.copy()
    shape[:, 2] = outputs
    return replace(wide, shape=shape)


def test_transforms_move_the_operands_and_the_transformed() -> None:
    model = replace(IDEAL, transforms=0.5)
    samples, side, channels = 64, 8, 256
    transformed = 36 * (samples * 4 * 2 * channels + channels**2) * 4
    products_s = flops(samples, side, channels) / PEAK / 4
    (seconds,) = model.seconds(work(samples, side, channels, bytes_moved=1e6), Machine(1e12, 10, 1e6))
    assert seconds == pytest.approx((1e6 + transformed) / 0.5e12 + products_s, rel=1e-3)


def test_power_limits_winograd_too() -> None:
    limited = replace(FUSED, sustained=0.5)
    ratio = limited.seconds(work(64, 32, 512), MACHINE) / FUSED.seconds(work(64, 32, 512), MACHINE)
    assert ratio == pytest.approx(2.0, rel=1e-2)


def test_two_products_of_a_backward_take_twice_as_long() -> None:
    once = work(512, 16, 512)
    twice = replace(once, shape=once.shape * [2, 1, 1, 1])
    for model in (IDEAL, FUSED):
        assert model.seconds(twice, MACHINE) == pytest.approx(2 * model.seconds(once, MACHINE))
