"""Seconds of ops on devices: their classes, those of a calibration, else of the roofline."""

from __future__ import annotations

import time
from dataclasses import replace

import numpy as np
import pytest

from envs.cluster.cluster import Cluster, Device
from envs.cluster.kinds import KINDS
from envs.cluster.presets import get_cluster
from envs.costs.calibration import calibration_of
from envs.costs.efficiency import MatmulWork
from envs.costs.op_classes import op_class
from envs.costs.op_seconds import (
    CostError,
    calibrated_seconds,
    calibration_note,
    op_seconds,
    roofline_seconds,
)
from envs.problem import Problem
from graphs.limits import MAX_SECONDS, MIN_SECONDS
from graphs.op_graph import OpGraph, build_graph

FAST = Device("fast", "v100", 1e9, flops_per_s=100.0, bytes_per_s=10.0, launch_s=0.5)
SLOW = Device("slow", "k80", 1e9, flops_per_s=10.0, bytes_per_s=5.0, launch_s=0.25)
CLUSTER = Cluster("c", (FAST, SLOW), np.ones((2, 2)), np.zeros((2, 2)))
ALONE = {"bytes_per_s": np.ones((1, 1)), "latency_s": np.zeros((1, 1))}


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


def test_known_times() -> None:
    ops: list[dict[str, object]] = [
        {"name": "weights", "type": "parameter", "flops": 100, "seconds": {"k80": 9.0}},
        {"name": "batch", "type": "input", "bytes_moved": 100},
        {"name": "arithmetic", "flops": 200, "bytes_moved": 10},
        {"name": "traffic", "flops": 100, "bytes_moved": 30},
        {"name": "measured", "flops": 100, "seconds": {"k80": 7.0}},
        {"name": "measured as nothing", "flops": 100, "seconds": {"k80": 0.0}},
        {"name": "metadata"},
    ]
    seconds = op_seconds(build_graph("g", "", ops, []), CLUSTER)
    expected = [[0, 0], [0, 0], [2.5, 20.25], [3.5, 10.25], [1.5, 7], [1.5, 0], [0, 0]]
    np.testing.assert_allclose(seconds, expected)
    assert seconds.dtype == np.float64
    assert seconds.flags.c_contiguous


@pytest.mark.parametrize(
    ("op", "seconds"),
    [
        ({"flops": 5e10}, "5e\\+13 s"),
        ({"bytes_moved": 1e-12}, "1e-18 s"),
        ({"seconds": {"k80": 1e-300}}, "1e-300 s"),
    ],
    ids=["long", "short", "measured"],
)
def test_an_op_time_beyond_physics_is_refused(op: dict[str, object], seconds: str) -> None:
    graph = build_graph("g", "", [{"name": "a"}, {"name": "mm"} | op], [])
    odd = replace(CLUSTER, devices=(FAST, replace(SLOW, flops_per_s=1e-3, bytes_per_s=1e6, launch_s=0.0)))
    message = f"graph 'g' on cluster 'c': op 1 \\('mm'\\) takes {seconds} on 'slow'; a time is 0, or from"
    with pytest.raises(CostError, match=message):
        Problem(graph, odd)


@pytest.mark.parametrize(
    ("sizes", "n_half", "message"),
    [
        ((4.0, 1e13), 0.0, "tensor 1 takes 1e\\+13 s from 'slow' to 'fast'; a time is 0, or from"),
        ((5e-324, 4.0), 0.0, "tensor 0 takes 4.94066e-324 s from 'fast' to 'slow'; a time is 0, or from"),
        ((4.0, 0.0, 1e-16), 0.0, "tensor 2 takes 1e-16 s from 'fast' to 'slow'; a time is 0, or from"),
        ((4.0, 9.8e8), 3e7, "tensor 1 takes 1.01e\\+09 s from"),
        ((0.0, 1e-16), [[0.0, 0.0], [1.0, 0.0]], "tensor 1 takes 1e-16 s from 'fast' to 'slow'"),
    ],
)
def test_a_transfer_time_beyond_physics_is_refused(
    sizes: tuple[float, ...], n_half: object, message: str
) -> None:
    """What the curve of a link adds counts."""
    graph = build_graph("g", "", [{"name": "a"}, {"name": "b"}], [(0, size, [1]) for size in sizes])
    links = {"bytes_per_s": np.array([[0.0, 1.0], [1.0 - 1e-9, 0.0]]), "n_half_bytes": np.array(n_half)}
    with pytest.raises(CostError, match=message):
        Problem(graph, replace(CLUSTER, **links))
    assert Problem(graph, replace(CLUSTER, devices=(FAST,), **ALONE)).op_seconds.shape == (2, 1)


def test_times_at_the_bounds_are_times() -> None:
    seconds = [0.0, MIN_SECONDS, MAX_SECONDS / 2]
    ops = [{"name": f"op{at}", "seconds": {"v100": value}} for at, value in enumerate(seconds)]
    problem = Problem(build_graph("g", "", ops, [(0, 1e9, [1])]), CLUSTER)
    np.testing.assert_array_equal(problem.op_seconds[:, 0], seconds)


def graph_of(*ops: tuple[str, str, tuple[int, int, int, int], float, float]) -> OpGraph:
    """A graph of (type, dtype, gemm, flops, bytes) with no tensors."""
    records = [
        {"name": f"op{at}", "type": kind, "flops": flops, "bytes_moved": size}
        for at, (kind, _, _, flops, size) in enumerate(ops)
    ]
    return replace(
        build_graph("g", "", records, []),
        dtypes=tuple(dtype for _, dtype, _, _, _ in ops),
        gemm=np.array([gemm for _, _, gemm, _, _ in ops], dtype=np.int64),
    )


def seconds_on(name: str, graph: OpGraph) -> np.ndarray:
    device = KINDS[name].device()
    calibration = calibration_of(device.kind)
    assert calibration
    return calibrated_seconds(graph, device, calibration)


def product(
    dtype: str, m: int, n: int, k: int, op_type: str = "aten.mm"
) -> tuple[str, str, tuple[int, ...], float, float]:
    item = 2 if dtype in ("fp16", "bf16") else 4
    return op_type, dtype, (1, m, n, k), 2.0 * m * n * k, float(item * (m * k + k * n + m * n))


def test_an_op_is_its_launch_and_what_its_model_says() -> None:
    device = KINDS["t4"].device()
    calibration = calibration_of("t4")
    assert calibration
    nothing = ("aten.view", "", (0, 0, 0, 0), 0, 0)
    add = ("aten.add", "fp32", (0, 0, 0, 0), 0, 1e8)
    *seconds, none = seconds_on("t4", graph_of(product("fp32", 512, 256, 1024), add, nothing))
    assert none == 0
    work = MatmulWork(
        np.array([[1.0, 512, 256, 1024]]),
        np.array([4.0 * (512 * 1024 + 1024 * 256 + 512 * 256)]),
        np.array([4.0]),
        np.array([8.1e12]),
        np.zeros((1, 2)),
    )
    machine = calibration.machine(device.bytes_per_s)
    expected = calibration.matmul("gemm", tensor=False).seconds(work, machine)[0]
    traffic = 1e8 / (320e9 * calibration.traffic("elementwise").efficiency)
    np.testing.assert_allclose(seconds, device.launch_s + np.array([expected, traffic]))


@pytest.mark.parametrize("name", [kind for kind in KINDS if calibration_of(kind)])
def test_no_op_beats_the_datasheet_by_far_and_none_is_idle_for_long(name: str) -> None:
    graph = graph_of(product("fp32", 8192, 8192, 8192), ("aten.relu", "fp32", (0, 0, 0, 0), 1e6, 4e9))
    ratio = seconds_on(name, graph) / roofline_seconds(graph, KINDS[name].device())
    assert (ratio > 0.9).all()
    assert (ratio < 4.0).all()


def test_low_precision_is_faster_only_where_there_are_tensor_cores() -> None:
    graph = graph_of(*(product(dtype, 4096, 4096, 4096) for dtype in ("fp32", "tf32", "fp16", "bf16")))
    full, tf32, fp16, bf16 = seconds_on("a100-sxm4-80gb", graph)
    assert full > 3 * tf32 > 3 * 1.3 * fp16
    assert fp16 == bf16
    full, tf32, fp16, _ = seconds_on("p4", graph)
    assert tf32 == full
    assert fp16 == pytest.approx(full, rel=0.2)


def test_a_product_without_shape_takes_what_a_large_one_does() -> None:
    shaped = product("fp32", 16384, 16384, 4096)
    seconds = seconds_on("v100-pcie-32gb", graph_of(shaped, (*shaped[:2], (0, 0, 0, 0), *shaped[3:])))
    assert seconds[1] == pytest.approx(seconds[0], rel=0.1)


def test_a_three_by_three_convolution_beats_a_one_by_one_of_its_flops() -> None:
    side, channels = 56, 128
    m, k = 32 * side * side, 9 * channels
    op = ("aten.convolution", "fp32", (1, m, channels, k), 2.0 * m * channels * k)
    three, one = 4.0 * (2 * m * channels + channels * k), 4.0 * (m * k + m * channels + channels * k)
    graph = replace(graph_of((*op, three), (*op, one)), image=np.array([[side, side], [0, 0]]))
    seconds = seconds_on("v100-pcie-32gb", graph)
    assert seconds[0] < 0.7 * seconds[1]


def test_the_backward_of_a_softmax_moves_twice_what_a_graph_counts() -> None:
    names = ("_log_softmax_backward_data", "_softmax_backward_data", "_softmax")
    ops = [(f"aten.{name}", "fp32", (0, 0, 0, 0), 1e6, 1e9) for name in names]
    log_softmax, softmax, forward = seconds_on("v100-pcie-32gb", graph_of(*ops))
    launch = KINDS["v100-pcie-32gb"].device().launch_s
    assert softmax - launch == pytest.approx(2 * (forward - launch))
    assert log_softmax == forward


def test_costs_follow_the_calibration_of_a_kind_and_else_the_roofline() -> None:
    graph = graph_of(product("fp32", 512, 512, 512), ("aten.relu", "fp32", (0, 0, 0, 0), 10, 1e7))
    known = KINDS["l4"].device()
    unknown = replace(known, name="other", kind="l4-of-another-maker")
    cluster = Cluster("c", (known, unknown), np.ones((2, 2)), np.zeros((2, 2)))
    seconds = op_seconds(graph, cluster)
    np.testing.assert_array_equal(seconds[:, 0], seconds_on("l4", graph))
    np.testing.assert_array_equal(seconds[:, 1], roofline_seconds(graph, unknown))
    assert (seconds[:, 0] > seconds[:, 1]).all()


def test_the_roofline_takes_the_peak_of_the_dtype() -> None:
    device = Device("d", "some", 1e9, 10.0, 1e9, 0.0, peaks={"fp16": 40.0, "fp32": 20.0})
    ops = [
        ("aten.mm", dtype, (0, 0, 0, 0), 80.0, 0.0) for dtype in ("", "fp32", "tf32", "fp16", "bf16", "fp64")
    ]
    np.testing.assert_array_equal(roofline_seconds(graph_of(*ops), device), [8, 4, 4, 2, 4, 8])


def test_equal_devices_have_equal_times_and_those_of_other_peaks_their_own() -> None:
    graph = graph_of(product("fp16", 512, 512, 512))
    first = replace(KINDS["t4"].device(), name="a")
    second = replace(first, name="b", peaks={"fp32": 8.1e12, "fp16": 20e12})
    third = replace(first, name="c")
    cluster = Cluster("c", (first, second, third), np.ones((3, 3)), np.zeros((3, 3)))
    (row,) = op_seconds(graph, cluster)
    assert row[0] == row[2] < row[1]


def test_a_problem_of_fifty_thousand_ops_is_made_in_a_second() -> None:
    ops = [product("fp32", 512, 512, 256 + at % 64) for at in range(10_000)]
    ops += [("aten.add", "fp32", (0, 0, 0, 0), 1e6, 1e7)] * 40_000
    graph = graph_of(*ops)
    kinds = ("a100-sxm4-40gb", "v100-sxm2-16gb", "rtx3090")
    devices = tuple(KINDS[kinds[at % 3]].device(f"d{at}") for at in range(16))
    cluster = Cluster("c", devices, np.full((16, 16), 1e10), np.zeros((16, 16)))
    start = time.process_time()
    Problem(graph, cluster)
    assert time.process_time() - start < 3.0


def test_costs_are_calibrated_where_every_op_has_a_fitted_or_a_measured_time():
    ops = [{"name": "w", "type": "parameter"}, {"name": "a", "flops": 1e9}, {"name": "b", "flops": 1e9}]
    graph = build_graph("g", "", ops, [])
    notes = {
        "4xv100-sxm2": "",
        "4xv100": "uncalibrated",
        "2xl40s": "",
        "8xh200": "calibrated in part",
        "8xb200": "calibrated in part",
        "l4+rtx4090": "uncalibrated",
    }
    assert {name: calibration_note(graph, get_cluster(name)) for name in notes} == notes
    mixed = get_cluster("a100+v100")
    guessed = replace(mixed, devices=(mixed.devices[0], replace(mixed.devices[1], kind="v100")))
    assert calibration_note(graph, guessed) == "uncalibrated"
    for seconds, all_are_known in (([np.nan, 1e-3, 1e-3], True), ([np.nan, 1e-3, np.nan], False)):
        measured = replace(graph, seconds={"v100": np.array(seconds)})
        assert (calibration_note(measured, guessed) == "") == all_are_known
