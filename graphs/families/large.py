"""Models too large for the shipped set, by name: `evaluate.py --model graphs.families.large:gpt2_xl`.

Each function returns (module, inputs) on the meta device. They are not families: nothing is drawn at random.

Sources: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (LLaMA, arXiv 2302.13971); Wu et al. 2016 (eight
layers of LSTM, arXiv 1609.08144).
"""

from __future__ import annotations

import torch

from graphs.families import gpt, llama, nmt
from graphs.families.registry import Drawn
from graphs.families.transformer import word_batch


def gpt2_xl() -> Drawn:
    """GPT-2 XL: 1.6 billion parameters in 48 layers; one sequence of 1,024 words."""
    config = gpt.Config(
        layers=48,
        width=1600,
        heads=25,
        length=1024,
        vocabulary=50_257,
        parallel=False,
        joint=True,
        fused=False,
        gated=False,
        tied=True,
    )
    with torch.device("meta"):
        return gpt.LanguageModel(config), word_batch(1, config.length)


def llama_7b() -> Drawn:
    """LLaMA 7B: 6.7 billion parameters in 32 layers; one sequence of 2,048 words."""
    config = llama.Config(layers=32, width=4096, inner=11_008, heads=32, vocabulary=32_000)
    with torch.device("meta"):
        return llama.LanguageModel(config), word_batch(1, 2048)


def seq2seq() -> Drawn:
    """Eight layers of LSTM each way, unrolled over sentences of 78 words: some 50,000 ops."""
    config = nmt.Config(
        layers=8,
        hidden=1024,
        vocabulary=32_000,
        attention="additive",
        input_feeding=True,
        bidirectional=True,
        residual=True,
    )
    batch, words = 128, 78
    with torch.device("meta"):
        source, target, labels = (torch.zeros(words, batch, dtype=torch.long) for _ in range(3))
        return nmt.Translator(config), (source, target, labels, torch.zeros(batch, config.hidden))
