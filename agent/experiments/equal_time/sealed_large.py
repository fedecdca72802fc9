"""Large graphs of the sealed test set: models of thousands of ops, drawn for it alone.

Each function draws a module and its inputs, as `graphs.families` does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import torch

from graphs.families import gpt, llama, moe, nmt, ptb, ssm, t5
from graphs.families.registry import Drawn, pick
from graphs.families.transformer import word_batch


def large_nmt(rng: np.random.Generator) -> Drawn:
    """1 to 4 layers of LSTM each way over 25 to 50 words, width 512 or 1,024, batch 64 to 256."""
    config = nmt.Config(
        layers=int(rng.integers(1, 5)),
        hidden=pick(rng, [512, 1024]),
        vocabulary=32_000,
        attention=pick(rng, ["dot", "additive"]),
        input_feeding=bool(rng.random() < 0.5),
        bidirectional=bool(rng.random() < 0.5),
        residual=bool(rng.random() < 0.5),
    )
    batch, words = pick(rng, [64, 128, 256]), int(rng.integers(25, 51))
    source, target, labels = (torch.zeros(words, batch, dtype=torch.long) for _ in range(3))
    return nmt.Translator(config), (source, target, labels, torch.zeros(batch, config.hidden))


def large_ptb(rng: np.random.Generator) -> Drawn:
    """Trees of 4 to 8 nodes over 40 to 100 time steps, width 512 to 2,048, batch 64 to 512."""
    nodes = int(rng.integers(4, 9))
    config = ptb.Config(
        parents=tuple(int(rng.integers(node)) for node in range(1, nodes)),
        activations=tuple(pick(rng, tuple(ptb.ACTIVATIONS)) for _ in range(nodes)),
        hidden=pick(rng, [512, 1024, 2048]),
        vocabulary=10_000,
        tied=bool(rng.random() < 0.5),
        stepwise=bool(rng.random() < 0.5),
    )
    batch = pick(rng, [64, 128, 256, 512])
    words = torch.zeros(int(rng.integers(40, 101)), batch, dtype=torch.long)
    return ptb.LanguageModel(config), (words, torch.zeros_like(words), torch.zeros(batch, config.hidden))


def large_gpt(rng: np.random.Generator) -> Drawn:
    """24 to 48 layers of width 1,024 to 2,048, 512 or 1,024 words, batch 1 to 4."""
    width = pick(rng, [1024, 1536, 2048])
    config = gpt.Config(
        layers=int(rng.integers(24, 49)),
        width=width,
        heads=width // 64,
        length=pick(rng, [512, 1024]),
        vocabulary=50_257,
        parallel=bool(rng.random() < 0.5),
        joint=bool(rng.random() < 0.5),
        fused=bool(rng.random() < 0.5),
        gated=bool(rng.random() < 0.5),
        tied=bool(rng.random() < 0.5),
    )
    return gpt.LanguageModel(config), word_batch(pick(rng, [1, 2, 4]), config.length)


def large_llama(rng: np.random.Generator) -> Drawn:
    """24 to 32 layers of width 1,024 to 2,048, 512 or 1,024 words, batch 1 to 4."""
    width = pick(rng, [1024, 2048])
    config = llama.Config(
        layers=int(rng.integers(24, 33)),
        width=width,
        inner=width * 8 // 3,
        heads=width // 64,
        vocabulary=32_000,
    )
    return llama.LanguageModel(config), word_batch(pick(rng, [1, 2, 4]), pick(rng, [512, 1024]))


def large_moe(rng: np.random.Generator) -> Drawn:
    """12 to 24 layers, every second one with 8 or 16 experts, width 512 or 1,024, 512 words, batch 1 to 4."""
    width = pick(rng, [512, 1024])
    config = moe.Config(
        layers=2 * int(rng.integers(6, 13)),
        every=2,
        width=width,
        inner=4 * width,
        heads=width // 64,
        length=512,
        vocabulary=32_000,
        experts=pick(rng, [8, 16]),
        top=pick(rng, [1, 2]),
        capacity=1.25,
        shared=bool(rng.random() < 0.5),
        gated=bool(rng.random() < 0.5),
    )
    return moe.LanguageModel(config), word_batch(pick(rng, [1, 2, 4]), config.length)


def large_t5(rng: np.random.Generator) -> Drawn:
    """16 to 24 layers each way, width 512 to 1,024, 512 source and 128 target words, batch 2 to 8."""
    width = pick(rng, [512, 768, 1024])
    config = t5.Config(
        encoder_layers=int(rng.integers(16, 25)),
        decoder_layers=int(rng.integers(16, 25)),
        width=width,
        inner=4 * width,
        heads=width // 64,
        vocabulary=32_128,
        gated=bool(rng.random() < 0.5),
        tied=bool(rng.random() < 0.5),
    )
    batch = pick(rng, [2, 4, 8])
    source, words = (torch.zeros(batch, length, dtype=torch.long) for length in (512, 128))
    return t5.Translator(config), (source, words, torch.zeros_like(words))


def large_ssm(rng: np.random.Generator) -> Drawn:
    """20 to 28 layers of width 768 to 1,536 in 4 chunks of 128 or 256 words, batch 1 to 4."""
    width, length = pick(rng, [768, 1024, 1536]), 4 * pick(rng, [128, 256])
    config = ssm.Config(
        layers=int(rng.integers(20, 29)),
        width=width,
        heads=width // 32,
        states=pick(rng, [64, 128]),
        length=length,
        chunks=4,
        kernel=4,
        vocabulary=50_280,
        attention_every=pick(rng, [0, 8]),
        feed_forward=False,
    )
    return ssm.LanguageModel(config), word_batch(pick(rng, [1, 2, 4]), length)


LARGE_FAMILIES: Mapping[str, Callable[[np.random.Generator], Drawn]] = {
    "large-nmt": large_nmt,
    "large-ptb": large_ptb,
    "large-gpt": large_gpt,
    "large-llama": large_llama,
    "large-moe": large_moe,
    "large-t5": large_t5,
    "large-ssm": large_ssm,
}
"""Drawers by name; they are called with the meta device in force."""
