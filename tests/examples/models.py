"""A GPT-2 of Hugging Face's transformers, a language model of LSTM layers, and a U-Net for images."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def make_gpt2() -> tuple[nn.Module, dict[str, Tensor]]:
    """Makes a small GPT-2 with a tied head and no dropout, and a batch that it returns the loss of."""
    import transformers

    torch.manual_seed(0)
    config = transformers.GPT2Config(
        n_layer=3, n_embd=48, n_head=4, vocab_size=120, n_positions=32, bos_token_id=0, eos_token_id=0
    )
    config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
    config.use_cache = False
    words = torch.randint(120, (2, 16))
    return transformers.GPT2LMHeadModel(config), {"input_ids": words, "labels": words}


WORDS, WIDTH, STEPS, BATCH = 60, 24, 5, 3


class LanguageModel(nn.Module):
    """Predicts every next word with two `nn.LSTM` layers; the loss is its cross-entropy."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, WIDTH)
        self.lstm = nn.LSTM(WIDTH, WIDTH, num_layers=2)
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        states, _ = self.lstm(self.embedding(words))
        return nn.functional.cross_entropy(self.head(states).flatten(0, 1), following.flatten())


def make_lstm() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes the model and a batch, (time, batch)."""
    torch.manual_seed(0)
    words = torch.randint(WORDS, (STEPS + 1, BATCH))
    return LanguageModel(), (words[:-1], words[1:])


class Block(nn.Module):
    """Two normalized convolutions beside a shortcut."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.GroupNorm(4, inside),
            nn.SiLU(inplace=True),
            nn.Conv2d(inside, outside, 3, padding=1),
            nn.GroupNorm(4, outside),
            nn.SiLU(inplace=True),
            nn.Conv2d(outside, outside, 3, padding=1),
        )
        self.shortcut = nn.Conv2d(inside, outside, 1)

    def forward(self, x: Tensor) -> Tensor:
        # A copy, as the first activation of the body works in place.
        return self.body(x.clone()) + self.shortcut(x)


class Attention(nn.Module):
    """Attention between the places of an image."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.GroupNorm(4, width)
        self.heads = nn.MultiheadAttention(width, 4, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        places = self.norm(x).flatten(2).transpose(1, 2)
        mixed, _ = self.heads(places, places, places, need_weights=False)
        return x + mixed.transpose(1, 2).reshape(x.shape)


class UNet(nn.Module):
    """Predicts the noise in an image; the loss is its mean squared error.

    It has two resolutions, skip connections, and attention in the middle.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList([Block(width, width), Block(width, 2 * width)])
        self.middle = nn.Sequential(Block(2 * width, 2 * width), Attention(2 * width))
        self.up = nn.ModuleList([Block(4 * width, width), Block(2 * width, width)])
        self.last = nn.Conv2d(width, 3, 3, padding=1)

    def forward(self, image: Tensor, noise: Tensor) -> Tensor:
        x, skips = self.first(image + noise), []
        for block in self.down:
            x = block(x)
            skips.append(x)
            x = nn.functional.avg_pool2d(x, 2)
        x = self.middle(x)
        for block in self.up:
            x = nn.functional.interpolate(x, scale_factor=2.0, mode="nearest")
            x = block(torch.cat([x, skips.pop()], 1))
        return nn.functional.mse_loss(self.last(x), noise)


def make_unet() -> tuple[nn.Module, tuple[Tensor, Tensor]]:
    """Makes the network and a batch of images with noise."""
    torch.manual_seed(0)
    return UNet(16), (torch.randn(2, 3, 16, 16), torch.randn(2, 3, 16, 16))
