"""Efficiency models: known answers and properties."""

from __future__ import annotations

from dataclasses import asdict, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

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


def test_waves_are_whole() -> None:
    """Ten blocks of 256 x 128 take one wave of ten multiprocessors, twenty take two."""
    seconds = IDEAL.seconds(work((10, 256, 128, 64), (20, 256, 128, 64)), MACHINE)
    one_wave = 2 * 256 * 128 * 64 / (PEAK / 10)
    np.testing.assert_allclose(seconds, [one_wave, 2 * one_wave])


def test_a_smaller_tile_is_taken_where_it_wastes_less() -> None:
    """One 32 x 32 product takes one tile of its size on one multiprocessor."""
    np.testing.assert_allclose(IDEAL.seconds(work((1, 32, 32, 64)), MACHINE), 2 * 32 * 32 * 64 / (PEAK / 10))


def test_a_share_of_a_wave_costs_its_share_without_quantisation() -> None:
    smooth = replace(IDEAL, waves=0.0)
    ten, fifteen = smooth.seconds(work((10, 256, 128, 64), (15, 256, 128, 64)), MACHINE)
    assert fifteen == pytest.approx(1.5 * ten)


def test_traffic_bounds_thin_products() -> None:
    model = replace(IDEAL, traffic=0.5)
    np.testing.assert_allclose(model.seconds(work((1, 1, 1, 1), bytes_moved=1e6), MACHINE), 2e-3)


def test_power_limits_large_tiles() -> None:
    limited = replace(IDEAL, sustained=0.25)
    ratio = limited.seconds(work((10, 256, 128, 64)), MACHINE) / IDEAL.seconds(
        work((10, 256, 128, 64)), MACHINE
    )
    np.testing.assert_allclose(ratio, 4.0, rtol=1e-3)


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
