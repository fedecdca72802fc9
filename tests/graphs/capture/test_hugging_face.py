"""Models of Hugging Face's transformers: module names in a step, and the inference of one token."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.runner import StepRunner
from graphs.capture import decoding as decoding_module
from graphs.capture.capture import capture
from graphs.capture.decoding import capture_decoding, read_prompt
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph
from graphs.step_settings import Gpu
from tests.envs.runtime.small_models import random_devices
from tests.graphs.capture.capture_cases import heard

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.zeros(2, 16, dtype=torch.long)


LAYERS, KV_HEADS, WIDTH, HEAD, EXPERTS, CHOSEN = 3, 2, 64, 8, 8, 2
SIZES = {"vocab_size": 100, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": LAYERS}
SIZES |= {"num_attention_heads": 8, "num_key_value_heads": KV_HEADS}
MIXTURE = SIZES | {"num_experts_per_tok": CHOSEN}
SMALL = {"vocab_size": 50, "hidden_size": 32, "num_hidden_layers": 2}
HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 48}
RECURRENT = SMALL | {"num_hidden_layers": 3, "num_attention_heads": 2, "lru_width": 32}
STATES = {"attn_layer_indices": [1], "mamba_n_heads": 4, "mamba_d_head": 16}
SEQ_SIZES = {"d_model": 32, "encoder_layers": 1, "decoder_layers": 2, "encoder_attention_heads": 2}
SEQ_SIZES |= {"decoder_attention_heads": 2, "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 50}
T5_SIZES = {"d_model": 32, "d_ff": 48, "num_layers": 2, "num_heads": 2, "d_kv": 16, "vocab_size": 50}
T5_SIZES |= {"decoder_start_token_id": 0}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "GPT2": ("LMHeadModel", {"n_layer": 2, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}),
    "Llama": ("ForCausalLM", SIZES),
    "Mixtral": ("ForCausalLM", MIXTURE | {"num_local_experts": EXPERTS}),
    "Qwen3Moe": (
        "ForCausalLM",
        MIXTURE | {"num_experts": EXPERTS, "moe_intermediate_size": 96, "head_dim": HEAD},
    ),
    "Mistral": ("ForCausalLM", SMALL | HEADS | {"sliding_window": 8}),
    "Mamba": ("ForCausalLM", SMALL),
    "Bamba": ("ForCausalLM", SMALL | HEADS | STATES),
    "RecurrentGemma": ("ForCausalLM", RECURRENT),
    "T5": ("ForConditionalGeneration", T5_SIZES),
    "Whisper": ("ForConditionalGeneration", SEQ_SIZES | {"num_mel_bins": 8, "max_source_positions": 12}),
}
"""The class of each model, after its name, and its configuration."""
CACHED = ["Mistral", "Mamba", "Bamba", "T5", "Whisper"]


def make(family: str, **others: Any) -> Any:
    head, sizes = MODELS[family]
    config = getattr(transformers, f"{family}Config")(**sizes | others)
    return getattr(transformers, f"{family}{head}")(config)


def on_meta(family: str, **others: Any) -> Any:
    with torch.device("meta"):
        return make(family, **others)


BLOCKS = {
    "GPT2": ("transformer.h.0.", "transformer.h.1."),
    "Llama": ("model.layers.0.", "model.layers.1."),
    "T5": ("encoder.block.0.", "decoder.block.0."),
}
"""Beginnings of the paths of two blocks of each model."""

INPUTS: dict[str, dict[str, Any]] = {
    "labels": {"labels": TOKENS},
    "no cache": {"labels": TOKENS, "use_cache": False},  # then packed sequences are looked for
    "positions": {"labels": TOKENS, "position_ids": torch.arange(16)[None]},
    "attention mask": {"labels": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
}


CASES = [("GPT2", "labels"), ("Llama", "no cache"), ("Llama", "positions"), ("Llama", "attention mask")]
CASES += [("T5", "attention mask")]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("family", "inputs"), CASES)
def test_every_product_keeps_its_module(family: str, inputs: str, training: bool) -> None:
    module, named = on_meta(family), {"input_ids": TOKENS, **INPUTS[inputs]}
    graph = capture(module, named, training=training, gpu=Gpu(8.0, "bf16"), notify=pytest.fail)
    linear = {path for path, part in module.named_modules() if type(part).__name__ in ("Linear", "Conv1D")}
    ops = list(zip(graph.op_types, graph.modules, graph.phases, strict=True))
    assert linear <= {path for kind, path, _ in ops if kind in ("aten.mm", "aten.addmm")}
    for block in BLOCKS[family]:
        phases = {phase for _, path, phase in ops if path.startswith(block)}
        assert phases == ({"forward", "backward", "optimizer"} if training else {"forward"})


VISION = {"hidden_size": 16, "num_heads": 2, "patch_size": 4, "depth": 1, "embed_dim": 16, "mlp_ratio": 2}
LANGUAGE = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "vocab_size": 64,
}


def qwen2_vl() -> tuple[nn.Module, dict[str, Tensor]]:
    rope = {"type": "mrope", "mrope_section": [1, 1, 2]}
    text = LANGUAGE | {"num_key_value_heads": 2, "rope_scaling": rope}
    ids = {"image_token_id": 60, "video_token_id": 61, "vision_start_token_id": 62, "vision_end_token_id": 63}
    config = transformers.Qwen2VLConfig(vision_config=VISION, text_config=text, **ids)
    images = torch.zeros(32, 3 * 2 * 4 * 4), torch.tensor([[1, 4, 4], [1, 4, 4]])
    inputs = dict(zip(("pixel_values", "image_grid_thw"), images, strict=True))
    inputs |= {"attention_mask": torch.ones(2, 8).long(), "mm_token_type_ids": (IMAGES == 60).long()}
    return transformers.Qwen2VLForConditionalGeneration(config), inputs


IMAGES = torch.tensor([[1, 60, 60, 60, 60, 2, 3, 4]] * 2)


def test_images_among_the_tokens_are_found_by_value() -> None:
    with torch.device("meta"):
        module, _ = qwen2_vl()
    _, inputs = qwen2_vl()
    graph, notices = heard(module, {"input_ids": IMAGES, "labels": IMAGES} | inputs)
    assert any("vis" in path for path in graph.modules)
    assert [notice.partition(": ")[2].partition(" that")[0] for notice in notices] == ["shapes"]


TOKEN_BYTES = KV_HEADS * HEAD * 4
"""Keys, or values, of one token in one layer."""


def decoding(model: nn.Module, prompt: int, batch: int = 1) -> OpGraph:
    return capture_decoding(model, torch.zeros(batch, 5, dtype=torch.long, device="meta"), prompt).graph


def ops_of(graph: OpGraph, kind: str) -> list[int]:
    return [op for op, name in enumerate(graph.op_types) if kind in name]


@pytest.mark.parametrize("batch", [1, 3])
def test_the_cache_is_resident_and_read_in_place(batch: int) -> None:
    model = on_meta("Llama")
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


@pytest.mark.parametrize("family", ["Mixtral", "Qwen3Moe"])
def test_a_mixture_reads_the_experts_that_are_chosen(family: str) -> None:
    graph = decoding(on_meta(family), 20)
    products, choices = ops_of(graph, "bmm"), ops_of(graph, "aten.index")
    assert len(products) == len(choices) == 2 * LAYERS
    assert not graph.bytes_moved[choices].any()
    for op in products:
        (weights,) = [at for at in graph.predecessors.row(op) if graph.op_types[at] == "parameter"]
        numbers = graph.bytes_moved[op] - graph.resident_bytes[weights] * CHOSEN / EXPERTS
        assert 0 < numbers < 0.1 * graph.bytes_moved[op]
        assert graph.unit_of[weights] == graph.unit_of[op]


def test_the_model_is_not_changed() -> None:
    model = on_meta("Mixtral")
    before = set(model.state_dict()), type(model), model.config.to_dict()
    decoding(model, 20)
    assert (set(model.state_dict()), type(model), model.config.to_dict()) == before


PROMPT = 70


def generating(family: str) -> tuple[Any, dict[str, torch.Tensor]]:
    """Makes a model and the inputs of a prompt."""
    torch.manual_seed(0)
    model = make(family, pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1)
    words = torch.randint(3, 50, (2, PROMPT))
    inputs = {"input_ids": words}
    if family == "T5":
        inputs["decoder_input_ids"] = words[:, :1]
    if family == "Whisper":
        inputs = {"input_features": torch.randn(2, 8, 24), "decoder_input_ids": words}
    return model.eval(), inputs


def tensors_of(cache: Any) -> list[torch.Tensor]:
    """Returns the tensors of floats in a cache, layer by layer."""
    if hasattr(cache, "self_attention_cache"):
        return tensors_of(cache.self_attention_cache) + tensors_of(cache.cross_attention_cache)
    held = [value for layer in cache.layers for value in vars(layer).values()]
    nested = [list(value.values()) if isinstance(value, dict) else [value] for value in held]
    return [each for values in nested for each in values if isinstance(each, torch.Tensor) and each.dim()]


@pytest.mark.parametrize("family", CACHED)
def test_the_cache_is_that_of_transformers(family: str) -> None:
    model, inputs = generating(family)
    with torch.no_grad():
        made = model(**inputs, use_cache=True)
    cache = made.cache_params if family == "Mamba" else made.past_key_values
    graph = capture_decoding(model, inputs, PROMPT).graph
    past = [op for op, name in enumerate(graph.op_names) if name.startswith("past_")]
    right = [float(each.nbytes) for each in tensors_of(cache)]
    assert sorted(graph.resident_bytes[past].tolist()) == sorted(right)
    weights = sum(each.nbytes for each in (*model.parameters(), *model.buffers()))
    assert graph.resident_bytes.sum() == sum(right) + weights
    # What writes a state is where the state is.
    for op in past:
        writers = [at for at in graph.successors.row(op) if graph.op_types[at] in ("aten.copy", "aten.cat")]
        assert {graph.unit_of[at] for at in writers} <= {graph.unit_of[op]}


@pytest.mark.parametrize("family", ["Bamba", "T5"])
def test_a_placed_token_has_the_scores_of_transformers(family: str) -> None:
    model, inputs = generating(family)
    captured = capture_decoding(model, inputs, PROMPT)
    real, token = copy.deepcopy(model), torch.tensor([[5], [7]])
    with torch.no_grad():
        after = read_prompt(real, inputs)
        made = model(**inputs, use_cache=True)
        extra = {name: value for name, value in after.items() if name == "encoder_outputs"}
        word = "decoder_input_ids" if extra else "input_ids"
        right = model(**{word: token}, **extra, past_key_values=made.past_key_values)[0]
    device_of = random_devices(captured.graph, 2, 0)
    with StepRunner(captured, device_of, real, DeviceProcesses(2, timeout_s=120)) as runner:
        (scores,) = runner.step(after | {word: token})
    torch.testing.assert_close(scores, right)


def test_a_static_cache_is_written_in_place() -> None:
    model = on_meta("Llama")
    model.generation_config.cache_implementation = "static"
    graph = decoding(model, 20)
    keys = [op for op, name in enumerate(graph.op_names) if name.endswith(("_keys", "_values"))]
    assert (graph.resident_bytes[keys] == 21 * TOKEN_BYTES).all()
    assert (graph.bytes_moved[ops_of(graph, "index_copy")] == 2 * (TOKEN_BYTES + 8)).all()


def test_states_of_any_prompt_are_those_of_a_short_one(monkeypatch: pytest.MonkeyPatch) -> None:
    lengths: list[int] = []
    real = decoding_module._inputs_of_prompt
    monkeypatch.setattr(
        decoding_module, "_inputs_of_prompt", lambda *given: lengths.append(given[2]) or real(*given)
    )
    for family in ("Mamba", "Mistral"):
        capture_decoding(*generating(family), 200)
    assert lengths == [61, 61, 200]


def test_a_model_that_returns_no_cache_says_so() -> None:
    with pytest.raises(CaptureError, match=r"no key-value cache .* it returns none of past_key_values, "):
        capture_decoding(make("RecurrentGemma"), torch.zeros(1, 4), 20)


@pytest.mark.parametrize("model", [nn.Linear(4, 4), nn.LSTM(4, 4)], ids=["linear", "lstm"])
def test_a_model_without_a_cache_is_refused_in_one_line(model: nn.Module) -> None:
    with pytest.raises(
        CaptureError, match=r"makes no key-value cache .* a prompt needs a model of transformers"
    ) as e:
        capture_decoding(model, torch.zeros(1, 4), 20)
    assert "\n" not in str(e.value)
