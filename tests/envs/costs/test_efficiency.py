"""Models of products, convolutions and traffic: known answers and properties."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.costs.convolutions import ConvolutionModel
from envs.costs.efficiency import BatchedModel, Machine, MatmulModel, MatmulWork, TrafficModel, both

IDEAL = MatmulModel(
    launch_s=0.0,
    efficiency=1.0,
    sustained=1e3,
    traffic=1e9,
    prologue=0.0,
    tile_cost=0.0,
    waves=1.0,
    overlap=50.0,
    cache=1e9,
    deep=0.0,
)
"""Computes at the peak, in whole waves, with no traffic."""
WINOGRAD = ConvolutionModel(
    **asdict(replace(IDEAL, waves=0.0)), fused=1e-3, fused_prologue=0.0, transforms=1e9
)
"""At the peak, in no waves and with no traffic; Winograd's algorithm in one kernel is far slower."""
FUSED = replace(WINOGRAD, fused=1.0, transforms=1e-9)
"""The same, where that in one kernel is at the peak and that in four far slower."""
MACHINE = Machine(bytes_per_s=1e9, multiprocessors=10, l2_bytes=1e6)
PEAK = 1e12


def work(*shapes: tuple[int, int, int, int], bytes_moved: float = 0.0) -> MatmulWork:
    n = len(shapes)
    return MatmulWork(
        np.array(shapes, dtype=np.float64),
        np.full(n, bytes_moved),
        np.full(n, 4.0),
        np.full(n, PEAK),
        np.zeros((n, 2)),
    )


WAVE_S = 2 * 256 * 128 * 64 / (PEAK / 10)
"""One wave of ten multiprocessors, each of which computes a block of 256 x 128."""
PRODUCTS: dict[str, tuple[MatmulModel, MatmulWork, list[float]]] = {
    "waves are whole": (IDEAL, work((10, 256, 128, 64), (20, 256, 128, 64)), [WAVE_S, 2 * WAVE_S]),
    "a share of a wave costs its share without quantisation": (
        replace(IDEAL, waves=0.0),
        work((10, 256, 128, 64), (15, 256, 128, 64)),
        [WAVE_S, 1.5 * WAVE_S],
    ),
    "a smaller tile is taken where it wastes less": (
        IDEAL,
        work((1, 32, 32, 64)),
        [2 * 32 * 32 * 64 / (PEAK / 10)],
    ),
    "traffic bounds thin products": (
        replace(IDEAL, traffic=0.5),
        work((1, 1, 1, 1), bytes_moved=1e6),
        [2e-3],
    ),
    "power limits large tiles": (replace(IDEAL, sustained=0.25), work((10, 256, 128, 64)), [4 * WAVE_S]),
}


@pytest.mark.parametrize("what", PRODUCTS)
def test_products_take_what_they_do_by_hand(what: str) -> None:
    model, products, seconds = PRODUCTS[what]
    np.testing.assert_allclose(model.seconds(products, MACHINE), seconds, rtol=1e-5)


def test_unknown_shapes_take_what_large_products_take() -> None:
    shape = (1, 25600, 12800, 4096)
    flops = np.array([2.0 * np.prod(shape)])
    known = IDEAL.seconds(work(shape), MACHINE)
    np.testing.assert_allclose(IDEAL.seconds_of_flops(flops, work((0, 0, 0, 0)), MACHINE), known, rtol=1e-6)


@given(st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 4096), st.integers(1, 8))
def test_a_product_is_as_long_as_its_transpose_and_never_above_the_peak(
    m: int, n: int, k: int, batch: int
) -> None:
    model = replace(IDEAL, tile_cost=5.0, prologue=3.0, waves=0.5, overlap=3.0, cache=2.0, traffic=0.8)
    plain, turned = model.seconds(work((batch, m, n, k), (batch, n, m, k)), MACHINE)
    assert plain == pytest.approx(turned)
    assert plain >= 2 * batch * m * n * k / PEAK


def test_long_rows_are_read_again() -> None:
    model = TrafficModel(0.0, 1.0, reread=0.5, in_flight=100.0, steepness=20.0)
    room = MACHINE.l2_bytes / (MACHINE.multiprocessors * 100)
    seconds = model.seconds(np.full(3, 1e6), np.array([room / 4, room, room * 4]), MACHINE)
    np.testing.assert_allclose(seconds, [1e-3, 1.25e-3, 1.5e-3], rtol=1e-6)


def test_overlap_goes_from_the_sum_to_the_maximum() -> None:
    first, second = np.array([3.0, 0.0, 0.0]), np.array([4.0, 2.0, 0.0])
    np.testing.assert_allclose(both(first, second, 1.0), [7, 2, 0])
    np.testing.assert_allclose(both(first, second, 2.0), [5, 2, 0])
    np.testing.assert_allclose(both(first, second, 99.0), [4, 2, 0], rtol=1e-6)


def test_batched_products_take_the_tiles_of_the_machine() -> None:
    """A product of 64 columns wastes half of a tile of 128."""
    batched = BatchedModel(**asdict(replace(IDEAL, waves=0.0)))
    one_kernel = replace(MACHINE, batched_tiles=((64, 128),))
    narrow, wide = batched.seconds(work((64, 1024, 64, 64), (64, 1024, 128, 64)), one_kernel)
    assert narrow == pytest.approx(wide)
    assert batched.seconds(work((64, 1024, 64, 64)), MACHINE)[0] == pytest.approx(wide / 2)


def test_short_ops_run_beyond_what_power_allows_for_long() -> None:
    limited = replace(IDEAL, waves=0.0, sustained=0.25, launch_s=1e-3, burst=2.0, burst_s=0.1)
    products = work((10, 256, 128, 64), (10, 2560, 12800, 64 * 1024))
    short, long = (limited.timed_alone(products, MACHINE) - 1e-3) / limited.seconds(products, MACHINE)
    assert short == pytest.approx(0.5, rel=1e-3)
    assert long == pytest.approx(1.0, rel=1e-3)


def test_long_rows_cost_more_where_they_are_many() -> None:
    deep = replace(IDEAL, waves=0.0, deep=1.0)
    slower = [
        (deep.seconds(work(shape), MACHINE) / IDEAL.seconds(work(shape), MACHINE))[0]
        for shape in ((1, 2560, 12800, 1024), (1, 256, 128000, 10000), (1, 25600, 12800, 10000))
    ]
    assert slower[0] == pytest.approx(1.0, abs=1e-3)
    assert slower[1] < 1.2
    assert slower[2] == pytest.approx(1.5)


def convolution(
    samples: int, side: int, channels: int, *, width: int = 0, outputs: int = 0, bytes_moved: float = 0.0
) -> MatmulWork:
    """3x3 convolutions, padded to keep a square image or one of a width, to as many channels or `outputs`."""
    width = width or side
    product = work((1, samples * side * width, outputs or channels, 9 * channels), bytes_moved=bytes_moved)
    return replace(product, image=np.array([[side, width]], dtype=np.float64))


LARGE = convolution(64, 32, 512)
DIRECT_S = 2.0 * 64 * 32**2 * 512 * 9 * 512 / PEAK


@pytest.mark.parametrize(
    ("model", "saved"), [(WINOGRAD, 144 / 36), (FUSED, 36 / 16), (replace(WINOGRAD, transforms=1e-9), 1.0)]
)
def test_winograd_saves_products_where_it_is_faster_and_an_image_is_known(
    model: ConvolutionModel, saved: float
) -> None:
    assert model.seconds(LARGE, MACHINE) == pytest.approx(DIRECT_S / saved, rel=1e-3)
    no_image = replace(LARGE, image=np.zeros((1, 2)))
    assert model.seconds(no_image, MACHINE) == pytest.approx(DIRECT_S, rel=1e-3)


def test_images_are_padded_to_whole_tiles() -> None:
    """Of 4x4 outputs, of which 5x5 takes four; and a block of the single kernel has 8x16."""
    five, eight, nine = (WINOGRAD.seconds(convolution(512, side, 512), MACHINE)[0] for side in (5, 8, 9))
    assert five == pytest.approx(eight)
    assert nine == pytest.approx(eight * 9 / 4)
    eight, fifteen, sixteen = (FUSED.seconds(convolution(512, side, 512), MACHINE)[0] for side in (8, 15, 16))
    assert fifteen == pytest.approx(sixteen)
    assert sixteen == pytest.approx(2 * eight)
    four, tall = (FUSED.seconds(convolution(512, side, 512, width=16), MACHINE)[0] for side in (4, 8))
    assert four == pytest.approx(tall)


def test_the_single_kernel_writes_and_reads_transformed_weights() -> None:
    model = replace(FUSED, traffic=0.5, efficiency=1e-3)
    (seconds,) = model.seconds(convolution(1, 16, 4096), Machine(1e10, 10, 1e6))
    assert seconds == pytest.approx(2 * 16 * 4096**2 * 4 / 0.5e10, rel=0.01)


def test_blocks_of_the_single_kernel_have_32_channels() -> None:
    few, many = (FUSED.seconds(convolution(512, 16, 512, outputs=n), MACHINE)[0] for n in (33, 64))
    assert few == pytest.approx(many)


def test_transforms_move_the_operands_and_the_transformed() -> None:
    model = replace(WINOGRAD, transforms=0.5)
    samples, side, channels = 64, 8, 256
    transformed = 36 * (samples * 4 * 2 * channels + channels**2) * 4
    products_s = 2.0 * samples * side**2 * channels * 9 * channels / PEAK / 4
    (seconds,) = model.seconds(convolution(samples, side, channels, bytes_moved=1e6), Machine(1e12, 10, 1e6))
    assert seconds == pytest.approx((1e6 + transformed) / 0.5e12 + products_s, rel=1e-3)
