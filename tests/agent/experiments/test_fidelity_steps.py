"""Whole steps: names and values of measurements, errors of known times, and a model from a configuration."""

import json
from pathlib import Path

import numpy as np
import pytest

from agent.experiments.fidelity.models import MODELS, GraphCache, ModelError, Workload
from agent.experiments.fidelity.steps import (
    STEPS,
    MeasurementError,
    PublishedStep,
    compare_steps,
    kendall,
    parse_name,
    read_steps,
    steps_table,
)
from envs.cluster.cluster import Device
from graphs.op_graph import OpGraph, build_graph
from graphs.system.errors import InputError

DEVICE = Device("gpu", "made-up", 1e9, flops_per_s=1e12, bytes_per_s=1e11, launch_s=1e-6)
BERT = "bert_large-inf-512-8.json"


def write(folder: Path, name: str, value: object, device: str = "Tesla_T4") -> Path:
    path = folder / device / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(value if isinstance(value, str) else json.dumps(value))
    return path


def two_ops() -> OpGraph:
    """One op of 1 s by its flops and one of 2 s by its bytes on `DEVICE`, each launched in 1 us."""
    ops = [{"name": "a", "flops": 1e12}, {"name": "b", "bytes_moved": 2e11}]
    return build_graph("two", "", ops, [(0, 0, [1])])


def step(seconds: float, device: str = "Tesla_T4", batch: int = 8) -> PublishedStep:
    return PublishedStep(device, Workload("bert_large", "inf", 512, batch), seconds)


def test_the_steps_that_come_with_the_project_are_read():
    steps, left_out = read_steps(STEPS)
    assert len(steps) == 34
    assert {each.device for each in steps} >= {"Tesla_P4", "Tesla_V100-PCIE-32GB"}
    assert sorted(left_out.values()) == [3, 4, 6]
    (bert,) = [each for each in steps if str(each.workload) == "bert_large-train-512-2"]
    assert bert.seconds == pytest.approx(0.234258)


@pytest.mark.parametrize(
    ("name", "variant"),
    [
        ("gpt2_large-inf-1024-4.json", ""),
        ("gpt2_large-inf-1024-4-fusion.json", "fusion"),
        ("gpt2_large-inf-1024-4-pp4_1.json", "pp4_1"),
    ],
)
def test_a_name_says_what_was_measured(name, variant):
    assert parse_name(Path(name)) == (Workload("gpt2_large", "inf", 1024, 4), variant)


@pytest.mark.parametrize(
    "name",
    ["gpt2_large.json", "gpt2_large-inf-1024-0.json", "gpt2_large-eval-1024-4.json", "a-inf-1-1-x.json"],
)
def test_another_name_is_refused(name):
    with pytest.raises(MeasurementError, match="is named otherwise than"):
        parse_name(Path(name))


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (BERT, "{", "is no strict JSON"),
        (BERT, {"num_layer": 24}, "key 'e2e_latency' is missing"),
        (BERT, {"e2e_latency": "fast"}, "e2e_latency: is a string"),
        (BERT, {"e2e_latency": 0}, "e2e_latency is 0 ms"),
        (BERT, {"e2e_latency": -3.0}, "e2e_latency is -3 ms"),
        (BERT, {"e2e_latency": 1e300}, "e2e_latency is 1e"),
        ("bart-inf-512-8.json", {"e2e_latency": 1}, "unknown measured model 'bart'; use one of gpt2_large"),
    ],
)
def test_wrong_measurements_are_refused_in_one_line(tmp_path, name, value, message):
    write(tmp_path, name, value)
    with pytest.raises(InputError, match=message) as caught:
        read_steps(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_steps_is_refused(tmp_path):
    write(tmp_path, "gpt2_large-inf-1024-4-fusion.json", {})
    with pytest.raises(MeasurementError, match="holds no measured steps"):
        read_steps(tmp_path)


def test_times_of_one_device_are_the_sums_of_its_ops():
    (row,) = compare_steps([step(1.5)], lambda workload: two_ops(), lambda name: DEVICE)
    assert row.predicted_s == pytest.approx(3.000002)
    assert row.roofline_s == row.predicted_s
    assert row.error == pytest.approx(1.0, abs=1e-5)
    assert (row.name, row.sequence, row.batch, row.n_ops) == ("bert_large-inf-512-8", 512, 8, 2)


def test_the_table_holds_medians_and_percentiles_by_device():
    measured = [3.0, 3.0 / 1.1, 3.0 / 1.2]
    steps = [*(step(seconds) for seconds in measured), step(1.5, "Tesla_P4")]
    rows = compare_steps(steps, lambda workload: two_ops(), lambda name: DEVICE)
    _, t4, p4, together = steps_table(rows)
    assert t4[:4] == ["Tesla_T4", "3", "10.0%", "18.0%"]
    assert p4[:5] == ["Tesla_P4", "1", "100.0%", "100.0%", "nan"]
    assert together[:3] == ["all", "4", "15.0%"]


def test_tau_counts_pairs_in_order_less_pairs_out_of_order():
    assert kendall([1, 2, 3, 4], [10, 20, 30, 40]) == pytest.approx(1)
    assert kendall([1, 2, 3, 4], [10, 20, 40, 30]) == pytest.approx(4 / 6)
    assert kendall([4, 3, 2, 1], [10, 20, 30, 40]) == pytest.approx(-1)
    assert np.isnan(kendall([1], [1]))


@pytest.fixture(scope="module")
def tiny() -> str:
    """Registers a GPT-2 of two layers."""
    pytest.importorskip("transformers", reason="transformers is not installed")

    def build(transformers, training):
        config = transformers.GPT2Config(
            n_embd=32, n_head=2, n_layer=2, vocab_size=100, n_positions=64, use_cache=False,
            bos_token_id=0, eos_token_id=0,
        )  # fmt: skip
        return transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")

    MODELS.register("tiny_gpt2", build)
    return "tiny_gpt2"


def flops_of(graph: OpGraph, phase: str, *types: str) -> float:
    chosen = [
        kind in types and each == phase for kind, each in zip(graph.op_types, graph.phases, strict=True)
    ]
    return float(graph.flops[chosen].sum())


@pytest.mark.parametrize("mode", ["inf", "train"])
def test_a_captured_step_does_the_work_of_the_model(tiny, mode, tmp_path):
    """Products of GPT-2 by hand: 12 hidden^2 a token and layer, two of length x length, and the head."""
    batch, length, hidden, layers, vocabulary = 3, 16, 32, 2, 100
    workload = Workload(tiny, mode, length, batch)
    graph = GraphCache(tmp_path).workload(workload)
    linear = 2 * batch * length * hidden * (12 * hidden * layers + vocabulary)
    attention = 2 * 2 * batch * length * length * hidden * layers
    assert flops_of(graph, "forward", "aten.addmm", "aten.mm") == linear
    assert flops_of(graph, "forward", "aten.bmm") == attention
    assert flops_of(graph, "backward", "aten.mm") == (2 * linear if mode == "train" else 0)
    assert flops_of(graph, "backward", "aten.bmm") == (2 * attention if mode == "train" else 0)
    assert ("aten.native_dropout" in graph.op_types) == (mode == "train")
    assert ("aten.nll_loss_forward" in graph.op_types) == (mode == "train")


def test_a_graph_is_captured_once(tiny, tmp_path):
    workload, told = Workload(tiny, "inf", 16, 1), []
    first = GraphCache(tmp_path, told.append).workload(workload)
    cache = GraphCache(tmp_path, told.append)
    assert cache.workload(workload).op_names == first.op_names
    assert cache.workload(workload) is cache.workload(workload)
    assert told == [f"capturing {workload}"]


def test_an_unknown_model_is_refused(tmp_path):
    with pytest.raises(ModelError, match="unknown measured model 'bart'"):
        GraphCache(tmp_path, lambda line: None).workload(Workload("bart", "inf", 16, 1))
