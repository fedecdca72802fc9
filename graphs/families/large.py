"""Models too large for the shipped set, by name: `evaluate.py --model graphs.families.large:gpt2_xl`.

Each function returns (module, inputs) on the meta device. They are not families: nothing is drawn at random.

Sources: Radford et al. 2019 (GPT-2); Touvron et al. 2023 (LLaMA, arXiv 2302.13971); Wu et al. 2016 (eight
layers of LSTM, arXiv 1609.08144).
"""

from __future__ import annotations

import torch

from graphs.families import Drawn
from graphs.families.layers import Sizes, word_batch
from graphs.families.recurrent import Translator, TranslatorConfig
from graphs.families.text import Llama, gpt


def gpt2_xl() -> Drawn:
    """GPT-2 XL: 1.6 billion parameters in 48 layers; one sequence of 1,024 words."""
    sizes = Sizes(layers=48, width=1600, heads=25, length=1024, vocabulary=50_257)
    with torch.device("meta"):
        model = gpt(sizes, parallel=False, joint=True, fused=False, gated=False, tied=True)
        return model, word_batch(1, sizes.length)


def llama_7b() -> Drawn:
    """LLaMA 7B: 6.7 billion parameters in 32 layers; one sequence of 2,048 words."""
    with torch.device("meta"):
        return Llama(32, 4096, inner=11_008, heads=32, vocabulary=32_000), word_batch(1, 2048)


def seq2seq() -> Drawn:
    """Eight layers of LSTM each way, unrolled over sentences of 78 words: some 50,000 ops."""
    kinds = {"input_feeding": True, "bidirectional": True, "residual": True}
    config = TranslatorConfig(8, 1024, 32_000, "additive", **kinds)
    batch, words = 128, 78
    with torch.device("meta"):
        source, target, labels = (torch.zeros(words, batch, dtype=torch.long) for _ in range(3))
        return Translator(config), (source, target, labels, torch.zeros(batch, config.hidden))
