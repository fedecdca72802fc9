"""Small models of transformers, one of each architecture, with inputs by keyword."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
import transformers
from torch import Tensor, nn

IDS = {"input_ids": torch.arange(16).reshape(2, 8) % 60 + 2}
MASKED = IDS | {"attention_mask": torch.tensor([[1] * 8, [1] * 6 + [0] * 2])}
LABELLED = MASKED | {"labels": IDS["input_ids"]}
TEXT = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
WIDE = TEXT | {"intermediate_size": 32}
GROUPED = WIDE | {"num_key_value_heads": 1, "head_dim": 8}
MERGED = {"bos_token_id": 1, "eos_token_id": 1, "pad_token_id": 0}
IMAGE = {"image_size": 16, "patch_size": 8}
PIXELS = {"pixel_values": torch.linspace(-1, 1, 2 * 3 * 16 * 16).reshape(2, 3, 16, 16)}
SEQUENCES = {
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}

Inputs = Mapping[str, Tensor]
ARCHITECTURES: dict[str, tuple[str, dict[str, Any], Inputs]] = {
    "GPT2LMHeadModel": ("GPT2Config", {"vocab_size": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}, LABELLED),
    "BertForMaskedLM": ("BertConfig", WIDE, LABELLED),
    "AlbertForMaskedLM": ("AlbertConfig", WIDE | {"embedding_size": 8}, MASKED),
    "DebertaV2ForMaskedLM": (
        "DebertaV2Config",
        WIDE | {"relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 4},
        MASKED,
    ),
    "T5ForConditionalGeneration": (
        "T5Config",
        {"vocab_size": 64, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2}
        | {"decoder_start_token_id": 0},
        LABELLED,
    ),
    "WhisperForConditionalGeneration": (
        "WhisperConfig",
        SEQUENCES
        | {"vocab_size": 64, "num_mel_bins": 8, "max_source_positions": 8, "decoder_start_token_id": 2}
        | {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 1},
        {"input_features": torch.linspace(0, 1, 2 * 8 * 16).reshape(2, 8, 16), "labels": IDS["input_ids"]},
    ),
    "ViTForImageClassification": ("ViTConfig", WIDE | IMAGE, PIXELS),
    "CLIPModel": (
        "CLIPConfig",
        {"text_config": WIDE | MERGED, "vision_config": WIDE | IMAGE, "projection_dim": 8},
        MASKED | PIXELS,
    ),
    "LlamaForCausalLM": ("LlamaConfig", GROUPED, LABELLED),
    "MixtralForCausalLM": (
        "MixtralConfig",
        GROUPED | {"num_local_experts": 2, "experts_implementation": "batched_mm"},
        MASKED,
    ),
    "MambaForCausalLM": (
        "MambaConfig",
        {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
        IDS,
    ),
    "SwinForImageClassification": (
        "SwinConfig",
        {
            "image_size": 16,
            "patch_size": 2,
            "embed_dim": 8,
            "depths": [1, 2],
            "num_heads": [1, 2],
            "window_size": 2,
        },
        PIXELS,
    ),
}


def make(name: str) -> tuple[nn.Module, Inputs]:
    """Makes a model in evaluation mode, with every parameter random."""
    config_name, settings, inputs = ARCHITECTURES[name]
    torch.manual_seed(0)
    model: nn.Module = getattr(transformers, name)(getattr(transformers, config_name)(**settings)).eval()
    return model, inputs
