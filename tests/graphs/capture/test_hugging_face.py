"""Small models of Hugging Face's transformers keep their module names when captured."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.op_graph import OpGraph
from graphs.step_settings import Gpu

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

TOKENS = torch.zeros(2, 16, dtype=torch.long)


def gpt2() -> nn.Module:
    config = transformers.GPT2Config(
        n_layer=2, n_embd=32, n_head=2, vocab_size=100, n_positions=64, bos_token_id=0, eos_token_id=0
    )
    return transformers.GPT2LMHeadModel(config)


def llama() -> nn.Module:
    config = transformers.LlamaConfig(
        vocab_size=100,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
    )
    return transformers.LlamaForCausalLM(config)


def t5() -> nn.Module:
    config = transformers.T5Config(
        vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=1, num_heads=2, decoder_start_token_id=0
    )
    return transformers.T5ForConditionalGeneration(config)


BLOCKS = {
    gpt2: ("transformer.h.0.", "transformer.h.1."),
    llama: ("model.layers.0.", "model.layers.1."),
    t5: ("encoder.block.0.", "decoder.block.0."),
}
"""Beginnings of the paths of two blocks of each model."""

INPUTS: dict[str, dict[str, Any]] = {
    "labels": {"labels": TOKENS},
    "no cache": {"labels": TOKENS, "use_cache": False},  # then packed sequences are looked for
    "attention mask": {"labels": TOKENS, "attention_mask": torch.ones_like(TOKENS)},
}


def capture_silently(module: nn.Module, inputs: dict[str, Any] | Tensor, training: bool) -> OpGraph:
    notices: list[str] = []
    graph = capture(module, inputs, training=training, gpu=Gpu(8.0, "bf16"), notify=notices.append)
    assert notices == []
    return graph


CASES = [(gpt2, "labels"), (llama, "no cache"), (llama, "attention mask"), (t5, "attention mask")]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize(("build", "inputs"), CASES)
def test_every_product_keeps_its_module(build: Callable[[], nn.Module], inputs: str, training: bool) -> None:
    with torch.device("meta"):
        module = build()
    graph = capture_silently(module, {"input_ids": TOKENS, **INPUTS[inputs]}, training)
    linear = {path for path, part in module.named_modules() if type(part).__name__ in ("Linear", "Conv1D")}
    ops = list(zip(graph.op_types, graph.modules, graph.phases, strict=True))
    assert linear <= {path for kind, path, _ in ops if kind in ("aten.mm", "aten.addmm")}
    for block in BLOCKS[build]:
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


def llava() -> tuple[nn.Module, dict[str, Tensor]]:
    vision = transformers.CLIPVisionConfig(
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=2,
        image_size=8,
        patch_size=4,
    )
    language = transformers.LlamaConfig(**LANGUAGE)
    config = transformers.LlavaConfig(vision_config=vision, text_config=language, image_token_id=60)
    return transformers.LlavaForConditionalGeneration(config), {"pixel_values": torch.zeros(2, 3, 8, 8)}


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


@pytest.mark.parametrize("make", [llava, qwen2_vl])
def test_images_among_the_tokens_are_found_by_value(
    make: Callable[[], tuple[nn.Module, dict[str, Tensor]]],
) -> None:
    with torch.device("meta"):
        module, _ = make()
    _, inputs = make()
    notices: list[str] = []
    graph = capture(module, {"input_ids": IMAGES, "labels": IMAGES} | inputs, notify=notices.append)
    assert any("vis" in path for path in graph.modules)
    assert [notice.partition(": ")[2].partition(" that")[0] for notice in notices] == ["shapes"]


def test_given_positions_are_traced_with_module_names() -> None:
    positions = torch.arange(16)[None]
    graph = capture_silently(
        llama(), {"input_ids": TOKENS, "position_ids": positions, "labels": TOKENS}, training=True
    )
    assert "model.layers.1.mlp.down_proj/mm" in graph.op_names
