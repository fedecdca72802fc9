"""Classes of ops: sums of a trace written by hand against those of a graph."""

import csv
import gzip
from pathlib import Path

import pytest

from agent.experiments.fidelity.classes import (
    ACCUMULATION,
    classes_table,
    compare_classes,
    measured_times,
    predicted_times,
    trace_of,
)
from agent.experiments.fidelity.models import Workload
from agent.experiments.fidelity.steps import MeasurementError, PublishedStep
from envs.cluster.cluster import Device
from graphs.op_graph import OpGraph, build_graph

COLUMNS = ("op", "target", "meta", "output_shape", "fw_latency", "bw_latency", "acc_latency")
LAYER = ("m.h", "M"), ("m.h.0", "Block")
BUILT_IN = "<built-in method {} of type object at 0x1>"
NODES = [
    ("placeholder", "input_ids", (), "(2, 4)", 0, 0, 0),
    ("call_method", "size", LAYER, "(1,)", 9, 9, 9),
    ("call_method", "view", LAYER, "(8, 4)", 9, 9, 9),
    ("call_function", "<built-in function add>", LAYER, "(1,)", 9, 9, 9),
    ("call_module", "m.wte", (("m.wte", "torch.nn.modules.sparse.Embedding"),), "(2, 4)", 1, 2, 4),
    ("call_module", "x", (*LAYER, ("m.h.0.x", "torch.nn.modules.linear.Linear")), "(2, 4)", 10, 20, 1),
    ("call_function", BUILT_IN.format("matmul"), LAYER, "(2, 4)", 3, 5, 0),
    ("call_method", "contiguous", LAYER, "(2, 4)", 2, 0, 0),
    ("call_function", "<function softmax at 0x2>", LAYER, "(2, 4)", 4, 6, 0),
    ("call_module", "d", (*LAYER, ("m.h.0.d", "torch.nn.modules.dropout.Dropout")), "(2, 4)", 1, 7, 0),
    ("call_function", "<built-in function add>", LAYER, "(2, 4)", 8, 0, 0),
    ("call_module", "lm_head", (("lm_head", "torch.nn.modules.linear.Linear"),), "(2, 4)", 100, 0, 0),
]
"""Milliseconds of each node; nines are of nodes that launch nothing."""
DEVICE = Device("gpu", "made-up", 1e9, flops_per_s=1e3, bytes_per_s=1e12, launch_s=0)


def write_trace(path: Path, nodes: list[tuple[object, ...]] = NODES) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with gzip.open(path, "wt", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(COLUMNS)
        for op, target, stack, *rest in nodes:
            inner = ", ".join(f"('{module}', <class '{kind}'>)" for module, kind in stack)
            writer.writerow([op, target, f"{{'nn_module_stack': OrderedDict([{inner}])}}", *rest])
    return path


def test_a_trace_of_one_layer_counts_for_all_layers(tmp_path):
    times = measured_times(write_trace(tmp_path / "t.csv.gz"), 10, training=True)
    milliseconds = {key: pytest.approx(1e3 * seconds) for key, seconds in times.items()}
    assert milliseconds == {
        ("forward", "gather"): 1,
        ("backward", "gather"): 2,
        ("forward", "gemm"): 10 * 10 + 100,
        ("backward", "gemm"): 10 * 20,
        ("forward", "bmm"): 10 * (3 + 2),
        ("backward", "bmm"): 10 * 5,
        ("forward", "softmax"): 10 * 4,
        ("backward", "softmax"): 10 * 6,
        ("forward", "elementwise"): 10 * (1 + 8),
        ("backward", "elementwise"): 10 * 7,
        ("backward", ACCUMULATION): 4 + 10 * 1,
    }


def test_dropout_takes_no_time_in_inference(tmp_path):
    times = measured_times(write_trace(tmp_path / "t.csv.gz"), 1, training=False)
    assert times["forward", "elementwise"] == pytest.approx(8e-3)


def graph() -> OpGraph:
    """Ops whose flops are their milliseconds on `DEVICE`."""
    rows = [
        ("aten.mm", "x", "forward", 10),
        ("aten.bmm", "", "forward", 3),
        ("aten.clone", "", "forward", 4),
        ("aten.tanh", "", "forward", 5),
        ("aten.sum", "x", "backward", 6),
        ("aten.sum", "y", "backward", 7),
        ("sgd", "x", "optimizer", 8),
    ]
    ops = [
        {"name": f"op{at}", "type": kind, "module": module, "phase": phase, "flops": flops}
        for at, (kind, module, phase, flops) in enumerate(rows)
    ]
    return build_graph("seven", "", ops, [])


def test_ops_of_a_graph_are_summed_by_phase_and_class():
    times = predicted_times(graph(), DEVICE)
    assert {key: pytest.approx(1e3 * seconds) for key, seconds in times.items()} == {
        ("forward", "gemm"): 10,
        ("forward", "bmm"): 7,
        ("forward", "elementwise"): 5,
        ("backward", "gemm"): 6,
        ("backward", "reduction"): 7,
        ("backward", ACCUMULATION): 8,
    }


def test_measured_and_predicted_classes_stand_side_by_side(tmp_path):
    workload = Workload("gpt2_large", "inf", 4, 2)
    step = PublishedStep("Tesla_T4", workload, 1.0, 1, tmp_path / "Tesla_T4" / f"{workload}.json")
    write_trace(trace_of(step))
    rows = compare_classes([step], lambda _: graph(), lambda _: DEVICE)
    (gemm,) = [row for row in rows if (row.phase, row.op_class) == ("forward", "gemm")]
    assert (gemm.measured_s, gemm.predicted_s) == (pytest.approx(0.11), pytest.approx(0.010))
    head, first, *_ = classes_table(rows)
    assert len(head) == len(first)
    assert first[:2] == ["Tesla_T4", "gemm"]
    assert first[3] == f"{(0.010 + 0.006) / (0.110 + 0.020):.2f}"


def test_a_step_without_a_trace_has_no_classes(tmp_path):
    workload = Workload("gpt2_large", "inf", 4, 2)
    step = PublishedStep("Tesla_T4", workload, 1.0, 1, tmp_path / "none.json")
    assert compare_classes([step], lambda _: graph(), lambda _: DEVICE) == []


@pytest.mark.parametrize("value", ["-1", "nan", "inf", "fast"])
def test_an_impossible_latency_is_refused(tmp_path, value):
    path = write_trace(tmp_path / "t.csv.gz", [(*NODES[4][:4], value, 0, 0)])
    with pytest.raises(MeasurementError, match=f"a latency is '{value}'"):
        measured_times(path, 1, training=False)


def test_a_file_that_is_no_trace_is_refused(tmp_path):
    path = tmp_path / "t.csv.gz"
    path.write_text("op,target")
    with pytest.raises(MeasurementError, match="is no compressed CSV file"):
        measured_times(path, 1, training=False)
    with gzip.open(path, "wt") as file:
        file.write("op,target\na,b\n")
    with pytest.raises(MeasurementError, match="lacks the column 'acc_latency'"):
        measured_times(path, 1, training=False)
    with gzip.open(path, "wt") as file:
        file.write(",".join(COLUMNS) + "\ncall_method,view\n")
    with pytest.raises(MeasurementError, match="row 2 is cut short"):
        measured_times(path, 1, training=False)
