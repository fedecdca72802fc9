"""The inference of one token: its cache, its traffic, and the models that have none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from graphs.capture.capture import capture
from graphs.capture.decoding import capture_decoding
from graphs.capture.loss import CaptureError
from graphs.granularity import with_granularity
from graphs.op_graph import OpGraph

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

LAYERS, KV_HEADS, WIDTH, HEAD, EXPERTS, CHOSEN = 3, 2, 64, 8, 8, 2
SIZES = {
    "vocab_size": 100,
    "hidden_size": WIDTH,
    "intermediate_size": 96,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": 8,
    "num_key_value_heads": KV_HEADS,
}
TOKEN_BYTES = KV_HEADS * HEAD * 4
"""Keys, or values, of one token in one layer."""


def make(family: str, **others: Any) -> nn.Module:
    config = getattr(transformers, f"{family}Config")(**SIZES, **others)
    with torch.device("meta"):
        model: nn.Module = getattr(transformers, f"{family}ForCausalLM")(config)
    return model


def decoding(model: nn.Module, prompt: int, batch: int = 1) -> OpGraph:
    return capture_decoding(model, torch.zeros(batch, 5, dtype=torch.long, device="meta"), prompt).graph


def ops_of(graph: OpGraph, kind: str) -> list[int]:
    return [op for op, name in enumerate(graph.op_types) if kind in name]


@pytest.mark.parametrize("batch", [1, 3])
def test_the_cache_is_resident_and_read_in_place(batch: int) -> None:
    model = make("Llama")
    short, long = (decoding(model, prompt, batch) for prompt in (20, 70))
    cache = [op for op, name in enumerate(short.op_names) if name.startswith("past_")]
    assert len(cache) == 2 * LAYERS
    assert (short.resident_bytes[cache] == 20 * batch * TOKEN_BYTES).all()
    # A longer prompt changes the cache, and the traffic of the attention that reads all of it.
    assert long.op_names == short.op_names
    grown = np.flatnonzero(long.bytes_moved != short.bytes_moved).tolist()
    assert grown == ops_of(short, "scaled_dot_product")
    assert (
        np.diff([each.bytes_moved[grown] for each in (short, long)], axis=0) == 100 * batch * TOKEN_BYTES
    ).all()
    assert ((long.tensor_bytes != short.tensor_bytes) == np.isin(short.tensor_producer, cache)).all()
    for op in cache:
        assert {short.unit_of[reader] for reader in short.successors.row(op)} == {short.unit_of[op]}
        assert set(short.successors.row(op)) & set(grown)


def test_weights_are_those_of_the_forward_pass() -> None:
    model = make("Llama")
    graph = decoding(model, 20)
    forward = capture(model, torch.zeros(1, 5, dtype=torch.long, device="meta"), training=False)
    assert graph.resident_bytes.sum() == forward.resident_bytes.sum() + 2 * LAYERS * 20 * TOKEN_BYTES
    # One more for a buffer of the rotary embedding that nothing reads.
    assert len(with_granularity(graph, "layer").units) == LAYERS + 1


@pytest.mark.parametrize(
    ("family", "others"),
    [
        ("Mixtral", {"num_local_experts": EXPERTS, "num_experts_per_tok": CHOSEN}),
        (
            "Qwen3Moe",
            {
                "num_experts": EXPERTS,
                "num_experts_per_tok": CHOSEN,
                "moe_intermediate_size": 96,
                "head_dim": HEAD,
            },
        ),
    ],
)
def test_a_mixture_reads_the_experts_that_are_chosen(family: str, others: dict[str, Any]) -> None:
    graph = decoding(make(family, **others), 20)
    products, choices = ops_of(graph, "bmm"), ops_of(graph, "aten.index")
    assert len(products) == len(choices) == 2 * LAYERS
    assert not graph.bytes_moved[choices].any()
    for op in products:
        (weights,) = [at for at in graph.predecessors.row(op) if graph.op_types[at] == "parameter"]
        numbers = graph.bytes_moved[op] - graph.resident_bytes[weights] * CHOSEN / EXPERTS
        assert 0 < numbers < 0.1 * graph.bytes_moved[op]
        assert graph.unit_of[weights] == graph.unit_of[op]


def test_a_window_bounds_the_cache() -> None:
    graph = decoding(make("Mistral", sliding_window=16), 50)
    cache = [op for op, name in enumerate(graph.op_names) if name.startswith("past_")]
    assert (graph.resident_bytes[cache] == 15 * TOKEN_BYTES).all()


def test_the_model_is_not_changed() -> None:
    model = make("Mixtral", num_local_experts=EXPERTS)
    before = set(model.state_dict()), type(model), model.config.to_dict()
    decoding(model, 20)
    assert (set(model.state_dict()), type(model), model.config.to_dict()) == before


@pytest.mark.parametrize("model", [nn.Linear(4, 4), nn.LSTM(4, 4)], ids=["linear", "lstm"])
def test_a_model_without_a_cache_is_refused_in_one_line(model: nn.Module) -> None:
    with pytest.raises(
        CaptureError, match=r"makes no key-value cache .* a prompt needs a model of transformers"
    ) as e:
        capture_decoding(model, torch.zeros(1, 4), 20)
    assert "\n" not in str(e.value)
