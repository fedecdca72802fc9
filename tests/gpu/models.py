"""Ten models whose steps are predicted and measured; a step takes a GPU some milliseconds."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from graphs.families import experts, images, t5, text
from graphs.families.layers import Sizes

Model = tuple[nn.Module, tuple[Tensor, ...]]
WORDS, CLASSES, SIDE = 8192, 100, 64


def words(*shape: int) -> Tensor:
    return torch.randint(WORDS, shape)


def pictures(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, SIDE, SIDE), torch.randint(CLASSES, (batch,))


class Perceptron(nn.Module):
    """Layers of one width, and the mean squared error of what they yield."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        parts = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.GELU())]
        self.layers = nn.Sequential(*parts)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return F.mse_loss(self.layers(x), y)


class Recurrent(nn.Module):
    """A language model of LSTM layers."""

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(WORDS, width)
        self.layers = nn.LSTM(width, width, layers, batch_first=True)
        self.head = nn.Linear(width, WORDS)

    def forward(self, words: Tensor, following: Tensor) -> Tensor:
        logits = self.head(self.layers(self.embedding(words))[0])
        return F.cross_entropy(logits.flatten(0, 1), following.flatten())


def _perceptron() -> Model:
    return Perceptron(8, 2048), (torch.randn(1024, 2048), torch.randn(1024, 2048))


def _recurrent() -> Model:
    return Recurrent(2, 512), (words(32, 32), words(32, 32))


def _resnet() -> Model:
    return images.resnet(
        "bottleneck", (2, 2, 2, 2), 64, branches=1, squeeze=False, classes=CLASSES
    ), pictures(64)


def _inception() -> Model:
    stages = (((0, 2), (1, 3)), ((0, 1, 4), (2, 3)))
    return images.inception(stages, width=64, classes=CLASSES), pictures(64)


def _vit() -> Model:
    patches = images.Patches(SIDE, 8, 512)
    return images.vit(patches, 6, 8, branches=1, classes=CLASSES, joint=True, fused=True), pictures(64)


def _bert() -> Model:
    model = text.MaskedWordModel(Sizes(4, 512, 8, 128, WORDS), fused=True, dropout=0.0, sentence_head=True)
    segments, masked = torch.randint(2, (32, 128)), torch.randperm(32 * 128)[:512]
    return model, (words(32, 128), segments, masked, words(512), torch.randint(2, (32,)))


def _gpt() -> Model:
    sizes = Sizes(6, 768, 12, 256, WORDS)
    model = text.gpt(sizes, parallel=False, joint=True, fused=True, gated=False, tied=True)
    return model, (words(16, 256), words(16, 256))


def _llama() -> Model:
    return text.Llama(4, 1024, inner=2816, heads=16, vocabulary=WORDS), (words(8, 256), words(8, 256))


def _t5() -> Model:
    config = t5.Config(3, 3, 512, 1024, 8, WORDS, gated=True, tied=True)
    return t5.Translator(config), (words(16, 128), words(16, 128), words(16, 128))


def _moe() -> Model:
    sizes = Sizes(4, 512, 8, 128, WORDS)
    config = experts.Config(sizes, 2, 1024, experts=4, top=2, capacity=1.0, shared=True, gated=True)
    return experts.ExpertModel(config), (words(16, 128), words(16, 128))


MODELS: dict[str, Callable[[], Model]] = {
    "perceptron": _perceptron,
    "lstm": _recurrent,
    "resnet": _resnet,
    "inception": _inception,
    "vit": _vit,
    "bert": _bert,
    "gpt": _gpt,
    "llama": _llama,
    "t5": _t5,
    "moe": _moe,
}
"""Makers of a module on the processor and its inputs."""
