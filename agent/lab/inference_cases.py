"""Language models of common sizes on the meta device, by their public configurations.

A function of a model is for `--model`: `agent.lab.inference_cases:llama_8b`. Its input is a prompt.

Sources: config.json of meta-llama/Llama-3.1-8B and Llama-3.1-70B, Qwen/Qwen2.5-32B and Qwen3-30B-A3B, and
mistralai/Mixtral-8x7B-v0.1 on huggingface.co.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from torch import nn

PROMPT = 4096
SIZES = ("hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "vocab_size")
Made = tuple["nn.Module", dict[str, Any]]


def llama_8b() -> Made:
    """Llama 3.1 8B: dense, 32 layers."""
    return _model("Llama", 4096, 14_336, 32, 32, 128_256)


def qwen_32b() -> Made:
    """Qwen2.5 32B: dense, 64 layers."""
    return _model("Qwen2", 5120, 27_648, 64, 40, 152_064)


def llama_70b() -> Made:
    """Llama 3.1 70B: dense, 80 layers."""
    return _model("Llama", 8192, 28_672, 80, 64, 128_256)


def mixtral_8x7b() -> Made:
    """Mixtral 8x7B: 47 billion parameters in 32 layers; 2 of 8 experts take a token."""
    return _model("Mixtral", 4096, 14_336, 32, 32, 32_000, num_local_experts=8, num_experts_per_tok=2)


def qwen_30b_a3b() -> Made:
    """Qwen3 30B-A3B: 31 billion parameters in 48 layers; 8 of 128 experts take a token."""
    experts = {"moe_intermediate_size": 768, "num_experts": 128, "num_experts_per_tok": 8}
    return _model("Qwen3Moe", 2048, 6144, 48, 32, 151_936, num_key_value_heads=4, head_dim=128, **experts)


def _model(family: str, *sizes: int, **others: int) -> Made:
    """Makes a model of a family of transformers, and a prompt whose last token alone is scored."""
    import transformers

    config = getattr(transformers, f"{family}Config")
    settings = dict(zip(SIZES, sizes, strict=True)) | {"num_key_value_heads": 8} | others
    with torch.device("meta"):
        model = getattr(transformers, f"{family}ForCausalLM")(config(**settings))
        return model, {"input_ids": torch.zeros(1, PROMPT, dtype=torch.long), "logits_to_keep": 1}
