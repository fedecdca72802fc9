"""What the readers of files refuse: each is one line that begins with the place and says what is wrong."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest

from envs.cluster.cluster import ClusterError
from envs.cluster.files import cluster_from_json
from envs.costs.calibration import (
    CalibrationError,
    calibration_from_json,
    calibration_of,
    calibration_to_json,
)
from envs.placements.files import placement_from_json, placement_to_json
from envs.placements.placement import PlacementError
from graphs.graph_columns import GraphError
from graphs.io.graph_files import graph_from_json
from graphs.op_graph import build_graph
from graphs.system.json_files import FileFormatError
from tests.envs.placements.test_placement import CLUSTER, GRAPH, placed
from tests.record_cases import (
    DEVICE,
    cluster_record,
    graph_record,
    with_device,
    with_links,
    with_op,
    with_tensor,
)

Rows = list[tuple[object, str]]
GEMM = [1, 32, 4, 4]
GRAPHS: Rows = [
    ([1], "is an array; expected an object"),
    (
        graph_record(format="placewalk.opgraph/2"),
        "format is 'placewalk.opgraph/2'; expected 'placewalk.opgraph/1'$",
    ),
    (graph_record(format=["x"]), "format is an array; expected"),
    (graph_record(ops=[], tensors=[]), "has no ops"),
    (graph_record(ops={}), "ops: is an object; expected an array"),
    (graph_record(ops=["mm"]), "op 0: is a string; expected an object"),
    (graph_record(version=1), "unknown key 'version'; known keys are family, format, name"),
    (with_op(flop=1), "op 1: unknown key 'flop'"),
    (with_tensor(size=1), "tensor 0: unknown key 'size'"),
    ({"name": "g"}, "keys 'format', 'ops', 'tensors' are missing; format must be 'placewalk.opgraph/1'$"),
    (graph_record(ops=[{"type": "mm"}]), "op 0: key 'name' is missing"),
    (graph_record(tensors=[{"consumers": []}]), "tensor 0: key 'producer' is missing"),
    (graph_record(name=3), "name: is a number; expected a string"),
    (with_op(name=""), "op 1: name: is empty"),
    (with_op(name="a\nb"), "op 1: name: 'a\\\\nb' holds characters"),
    (with_op(module="\ud800"), "op 1: module: .* holds characters that cannot be printed"),
    (with_op(name="a"), "two ops are named 'a'"),
    (with_op(phase="warm-up"), "has phase 'warm-up'; use one of forward, backward, optimizer"),
    (with_op(flops=True), "op 1: flops: is a boolean; expected a number"),
    (with_op(flops="1"), "op 1: flops: is a string"),
    (with_op(flops=10**400), "op 1: flops: is too large"),
    (with_op(flops=float("inf")), "op 1: flops: is too large"),
    (with_op(flops=1e308), "flops of the whole step is 1e\\+308, at op 1 \\('b'\\)"),
    (with_op(seconds={"k80": 4e9}), "seconds of 'k80' of the whole step is 4e\\+09"),
    (with_tensor(bytes=1e22), "bytes of the whole step is 1e\\+22, at tensor 0"),
    (with_op(flops=-1), "op 1 \\('b'\\) has flops -1.0; use a finite number >= 0"),
    (with_op(colocate=1.0), "op 1: colocate: is 1.0; expected an integer"),
    (with_op(colocate=-1), "op 1: colocate is -1; expected an id >= 0 or null"),
    (with_op(colocate=2**70), "op 1: colocate: .* at most 2\\*\\*53"),
    (with_op(seconds=1), "op 1: seconds: is a number; expected an object"),
    (with_op(seconds={"k80": None}), "op 1: seconds on k80: is null; expected a number"),
    (with_op(seconds={"k80": -1}), "has seconds of 'k80' -1.0"),
    (with_op(dtype="fp31"), "op 1 \\('b'\\) has dtype 'fp31'; use one of fp64, fp32, tf32"),
    (with_op(dtype=None), "op 1: dtype: is null; expected a string"),
    (with_op(gemm=1), "op 1: gemm: is a number; expected an array"),
    (with_op(gemm=[1, 2, 3]), "op 1: gemm: has 3 numbers; expected \\[batch, m, n, k\\]"),
    (with_op(gemm=[1, 2, 3, 4.0]), "op 1: gemm: is 4.0; expected an integer"),
    (with_op(gemm=[1, 2, 0, 4]), "op 1 \\('b'\\) has gemm \\[1, 2, 0, 4\\]; use four"),
    (with_op(gemm=[1, 2, -1, 4]), "use four extents from 1 to 1e\\+15"),
    (with_op(gemm=[1, 2**52, 1, 1]), "use four extents from 1 to 1e\\+15"),
    (with_op(gemm=[10**10] * 4), "of at most 1e\\+27 flops"),
    (with_op(source="a\a"), "cannot be printed"),
    (with_op(shape=3), "op 1: shape: is a number; expected an array"),
    (with_op(shape=[1.0]), "op 1: shape: is 1.0; expected an integer"),
    (with_op(shape=[-1]), "op 1: shape: is \\[-1\\]; expected extents of at least 0"),
    (with_op(image=[1]), "op 1: image: has 1 numbers; expected \\[height, width\\]"),
    (with_op(gemm=GEMM, image=[0, 4]), "has image \\[0, 4\\]; use the height and"),
    (with_op(image=[4, 4]), "whose product divides m of gemm, 0"),
    (with_op(gemm=GEMM, image=[3, 4]), "divides m of gemm, 32"),
    (with_op(gemm=GEMM, image=[-4, -4]), "has image \\[-4, -4\\]"),
    (with_op(gemm=GEMM, image=[2**52, 2**52]), "divides m of gemm, 32"),
    (with_tensor(producer=0.0), "tensor 0: producer: is 0.0; expected an integer"),
    (with_tensor(producer=False), "tensor 0: producer: is False"),
    (with_tensor(producer=7), "tensor 0 is produced by op 7, but ops are 0 to 2"),
    (with_tensor(consumers=[3]), "tensor 0 is consumed by op 3, but ops are 0 to 2"),
    (with_tensor(consumers=[None]), "tensor 0: a consumer: is null"),
    (with_tensor(consumers=1), "tensor 0: consumers: is a number; expected an array"),
    (with_tensor(consumers=[2, 1, 2]), "tensor 0: lists consumer 2 twice"),
    (with_tensor(producer=2, consumers=[0]), "goes from op 2 to op 0"),
    (with_tensor(producer=1, consumers=[1]), "a cycle cannot be sorted"),
    (with_tensor(bytes=-1), "tensor 0 has bytes -1.0"),
]
UNDER_FIFO = "but under schedule 'fifo'"
CLUSTERS: Rows = [
    ([], "is an array; expected an object"),
    (cluster_record(format="placewalk.opgraph/1"), "format is 'placewalk.opgraph/1'; expected"),
    (cluster_record(gap=0), "unknown key 'gap'; known keys are copies, devices"),
    ({"devices": 4}, "keys 'format', 'links', 'name' are missing; format must be 'placewalk.cluster/1'"),
    (cluster_record(devices=[]), "has 0 devices; give 1 to 1024"),
    (cluster_record(devices=[DEVICE] * 1025), "has 1025 devices; give 1 to 1024"),
    (cluster_record(links=[]), "links: is an array; expected an object"),
    (with_device(name="gpu0"), "device 1 \\('gpu0'\\) has the name of device 0"),
    (with_device(cores=4), "device 1: unknown key 'cores'"),
    (cluster_record(devices=[{"name": "gpu0"}]), "device 0: keys 'bytes_per_s', 'flops_per_s'"),
    (with_device(flops_per_s=0), "device 1 .*flops_per_s is 0.0; use a number from 0.001 to 1e\\+24"),
    (with_device(flops_per_s=1e308), "flops_per_s is 1e\\+308; use a number from"),
    (with_device(bytes_per_s="fast"), "device 1: bytes_per_s: is a string"),
    (with_device(launch_s=-1e-6), "launch_s is -1e-06; use 0, or from 1e-15 to 1e\\+09 s"),
    (with_device(launch_s=1e308), "launch_s is 1e\\+308; use 0, or from"),
    (with_device(memory_bytes=1e22), "memory_bytes is 1e\\+22; use a number from 1 to"),
    (with_device(memory_bytes=0.5), "memory_bytes is 0.5; use a number from 1 to"),
    (with_device(overlap_slowdown=1.5), f"overlap_slowdown is 1.5, {UNDER_FIFO} copies slow no ops; use 1"),
    (with_device(overlap_slowdown=0.9), "device 1 .* overlap_slowdown is 0.9; use a number from 1 to 1000"),
    (with_device(overlap_slowdown=1e4), "overlap_slowdown is 10000; use a number"),
    (with_device(peaks=[]), "device 1: peaks: is an array; expected an object"),
    (with_device(peaks={"fp6": 1e12}), "device 1: peaks: unknown key 'fp6'; known keys are bf16, fp16"),
    (with_device(peaks={"fp16": "fast"}), "device 1: peaks: fp16: is a string; expected a number"),
    (with_device(peaks={"fp16": 0}), "peaks of fp16 is 0.0; use a number from 0.001"),
    (cluster_record(transfer_gap_s=1e308), "transfer_gap_s is 1e\\+308; use 0, or from"),
    (cluster_record(op_gap_s=5e-324), "op_gap_s is 5e-324; use 0, or from"),
    (cluster_record(schedule="lifo"), "schedule is 'lifo'; use one of program, fifo"),
    (cluster_record(issue_s=1e-6), f"issue_s is 1e-06, {UNDER_FIFO} no host .* use 0"),
    (cluster_record(issue_s=-1), "issue_s is -1.0; use 0, or from 1e-15 to 1e\\+09 seconds"),
    (cluster_record(issue_per="step"), f"issue_per is 'step', {UNDER_FIFO} .* 'op'"),
    (cluster_record(issue_per="graph"), "issue_per is 'graph'; use one of op, step"),
    (cluster_record(copies="eager"), f"copies is 'eager', {UNDER_FIFO} .* 'stream'"),
    (
        cluster_record(schedule="program", copies="eager"),
        "copies is 'eager' and transfer_per 'tensor', but an eager",
    ),
    (cluster_record(copies="lazy"), "copies is 'lazy'; use one of stream, eager"),
    (with_links(sharing="bus"), "sharing is 'bus'; use one of egress, pair, none"),
    (with_links(transfer_per=1), "transfer_per: is a number; expected a string"),
    (with_links(latency_s=1e308), "to 'gpu1': latency_s is 1e\\+308; use 0, or from"),
    (with_links(latency_s=[[0, 0], [-1, 0]]), "link from 'gpu1' to 'gpu0': latency_s is -1.0"),
    (with_links(latency_s=[[0, 0], [0]]), "latency_s: expected one number, or 2 rows of 2"),
    (with_links(latency_s=[[0, 0], ["0", 0]]), "row 1, column 0: is a string"),
    (with_links(bytes_per_s=0), "link from 'gpu0' to 'gpu1': bytes_per_s is 0.0"),
    (with_links(bytes_per_s=5e-324), "bytes_per_s is 5e-324; use a number from"),
    (with_links(n_half_bytes=1e20), "n_half_bytes is 1e\\+20; use 0, or a size"),
    (with_links(n_half_bytes=1e-9), "n_half_bytes is 1e-09; use 0, or a size"),
    (with_links(n_half_bytes=[[0, 1]]), "n_half_bytes: expected one number, or 2 rows of 2"),
]


def placement(**changes: Any) -> dict[str, Any]:
    return placement_to_json(GRAPH, CLUSTER, placed(1, 1, 0)) | changes


def on(**devices: object) -> dict[str, Any]:
    return placement(device_of=placement()["device_of"] | devices)


PLACEMENTS: Rows = [
    ("p", "is a string; expected an object"),
    (placement(format=1), "format is 1; expected 'placewalk.placement/1'"),
    (placement(time=1), "unknown key 'time'"),
    (placement(device_of=[0, 1]), "device_of: is an array; expected an object, op name to device"),
    (on(mm=0), "device of 'mm': is a number; expected a string"),
    (placement(stage_of={"mm": 10**9, "add": 0}), "stage of 'mm' is 1.*; expected 0 to 1"),
    (placement(graph="h"), "is for graph 'h', not for 'g'"),
    (placement(cluster="4xv100"), "is for cluster '4xv100', not for '2xk80'"),
    (on(x="gpu0"), "op 'x' is not in graph 'g'"),
    (placement(device_of={"mm": "gpu0"}), "op 'w' and 1 more have no device"),
    (on(add="gpu7"), "'gpu7', but the devices .* are gpu0, gpu1"),
    (on(mm="gpu0"), "colocation group 5 is split"),
]
T4 = calibration_of("t4")
assert T4


def calibration(**changes: Any) -> dict[str, Any]:
    return calibration_to_json(T4) | changes  # type: ignore[arg-type]


def with_parameter(name: str, value: object) -> dict[str, Any]:
    changed = copy.deepcopy(calibration())
    changed["classes"]["gemm"]["parameters"][name] = value
    return changed


CALIBRATIONS: Rows = [
    ([], "is an array; expected an object"),
    (calibration(batched_tiles=[]), "batched_tiles: is \\[\\]; expected at least one"),
    (calibration(batched_tiles=[[64]]), "batched_tiles: is \\[\\[64\\]\\]; expected at least one"),
    (calibration(batched_tiles=[[64, 0]]), "expected at least one \\[rows, columns\\], each 1 to 4096"),
    (calibration(format="placewalk.calibration/2"), "format is 'placewalk.calibration/2'; expected"),
    ({"format": "placewalk.calibration/1"}, "keys 'classes', 'from', 'kind'"),
    (calibration(multiprocessors=0), "multiprocessors is 0; expected at least 1"),
    (calibration(l2_bytes=0), "l2_bytes is 0; expected 1 to"),
    (calibration(classes={"sort": {}}), "classes: unknown key 'sort'; known keys are attention"),
    (with_parameter("efficiency", 0), "gemm: efficiency is 0; expected 0.0001 to 4"),
    (with_parameter("waves", 2), "gemm: waves is 2; expected"),
    (with_parameter("efficiency", "high"), "gemm: efficiency: is a string; expected a number"),
    (with_parameter("speed", 1), "gemm: parameters: unknown key 'speed'"),
]


def read_placement(value: object, where: str) -> None:
    placement_from_json(value, where).resolve(GRAPH, CLUSTER)


READERS: dict[str, tuple[Callable[[object, str], object], type[Exception], Rows]] = {
    "graph": (graph_from_json, GraphError, GRAPHS),
    "cluster": (cluster_from_json, ClusterError, CLUSTERS),
    "placement": (read_placement, PlacementError, PLACEMENTS),
    "calibration": (calibration_from_json, CalibrationError, CALIBRATIONS),
}


ALL = [
    pytest.param(name, *row, id=f"{name}: {row[1]}") for name, (_, _, rows) in READERS.items() for row in rows
]


@pytest.mark.parametrize(("reader", "value", "message"), ALL)
def test_a_bad_file_is_refused_in_one_line(reader: str, value: object, message: str) -> None:
    read, error, _ = READERS[reader]
    with pytest.raises((FileFormatError, error), match=f"^here: .*{message}") as caught:
        read(value, "here")
    assert "\n" not in str(caught.value)


def test_a_calibration_needs_the_classes_that_stand_in_for_others() -> None:
    with pytest.raises(CalibrationError, match="calibration of 't4': op class 'gemm' is missing"):
        calibration_from_json(calibration(classes={}), "here")


@pytest.mark.parametrize(
    "op",
    [
        {"name": ""},
        {"type": "mm"},
        {"name": "b", "flop": 1},
        {"name": "b", "flops": "1"},
        {"name": "b", "colocate": -1},
        {"name": "b", "seconds": {"k80": None}},
        ["b"],
    ],
)
def test_graphs_built_in_python_keep_the_rules_of_files(op: Any) -> None:
    with pytest.raises(FileFormatError) as of_file:
        graph_from_json(graph_record(name="g", ops=[{"name": "a"}, op], tensors=[]), "graph 'g'")
    with pytest.raises(GraphError) as of_python:
        build_graph("g", "", [{"name": "a"}, op], [])
    assert str(of_file.value) == str(of_python.value)
