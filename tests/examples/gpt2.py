"""A GPT-2 of Hugging Face's transformers, from a configuration: the head is tied to the embedding."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a small GPT-2 without dropout, and a batch that it returns the loss of."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=3, n_embd=48, n_head=4, vocab_size=120, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.use_cache = False
    words = torch.randint(120, (2, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": words, "labels": words}
