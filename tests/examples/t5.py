"""A T5 of Hugging Face's transformers, from a configuration: an encoder and a decoder."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make() -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a small T5 without dropout, and a batch that it returns the loss of."""
    import transformers

    torch.manual_seed(0)
    config = transformers.T5Config(
        vocab_size=120,
        d_model=32,
        d_kv=16,
        d_ff=64,
        num_layers=2,
        num_heads=2,
        dropout_rate=0.0,
        decoder_start_token_id=0,
        use_cache=False,
    )
    words, labels = torch.randint(120, (2, 12)), torch.randint(120, (2, 8))
    batch = {"input_ids": words, "attention_mask": torch.ones_like(words), "labels": labels}
    return transformers.T5ForConditionalGeneration(config), batch
