"""Small models of every family in float64, inputs that differ, and the plain step to compare with."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from graphs.capture.loss import find_loss
from graphs.families import cifar10, experts, gnn, images, randwire, recurrent, ssm, t5, text
from graphs.families.layers import Sizes
from graphs.op_graph import OpGraph
from graphs.optimizers import NAMED
from graphs.system.array_types import IntArray
from tests.envs.runtime.custom_ops import scaled

WORDS, CLASSES, SIDE = 11, 7, 32
SIZES = Sizes(2, 16, 2, 6, WORDS)

INPUTS = (torch.tensor([[1, 2, 2], [3, 0, 4]]),)

Model = tuple[nn.Module, tuple[Tensor, ...]]


class Net(nn.Module):
    """A bag of embeddings with sparse gradients, an embedding that is tied to the head, and batch norm."""

    def __init__(self) -> None:
        super().__init__()
        self.bag = nn.EmbeddingBag(7, 8, sparse=True, mode="sum")
        self.words = nn.Embedding(7, 8)
        self.norm = nn.BatchNorm1d(8)
        self.mix = nn.Linear(16, 8)
        self.head = nn.Linear(8, 7)
        self.head.weight = self.words.weight
        self.double()

    def forward(self, ids: Tensor) -> Tensor:
        both = torch.cat([self.bag(ids), self.words(ids).sum(1)], 1)
        first, second = self.head(self.norm(self.mix(both)).tanh()).split([3, 4], 1)
        return (first.softmax(1).t().exp() @ second).square().mean()


class Scaling(nn.Module):
    """Two layers and a custom operator."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(6, 6), nn.Linear(6, 1)

    def forward(self, x: Tensor) -> Tensor:
        return scaled(self.second(scaled(self.first(x), 2.0)).square(), 0.5).mean()


def words(*shape: int) -> Tensor:
    return torch.randint(WORDS, shape)


def pictures(batch: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, 3, SIDE, SIDE), torch.randint(CLASSES, (batch,))


def _cifar10() -> Model:
    cell = cifar10.draw_cell(np.random.default_rng(0), 3)
    network = cifar10.Network(cell, cell, (1, 1), channels=4, twice=False)
    return cifar10.Classifier(network, network.channels, CLASSES), pictures(4)


def _ptb() -> Model:
    cell = recurrent.RecurrentCell((0, 1), ("tanh", "relu", "tanh"), 8)
    model = recurrent.RecurrentModel(cell, WORDS, tied=True, stepwise=True)
    return model, (words(3, 4), words(3, 4), torch.zeros(4, 8))


def _nmt() -> Model:
    kinds = {"input_feeding": True, "bidirectional": True, "residual": True}
    model = recurrent.Translator(recurrent.TranslatorConfig(2, 8, WORDS, "additive", **kinds))
    return model, (words(3, 4), words(2, 4), words(2, 4), torch.zeros(4, 8))


def _bert() -> Model:
    segments, masked = torch.randint(2, (3, 6)), torch.tensor([2, 7, 11])
    model = text.MaskedWordModel(SIZES, fused=False, dropout=0.0, sentence_head=True)
    return model, (words(3, 6), segments, masked, words(3), torch.randint(2, (3,)))


def _moe() -> Model:
    config = experts.Config(SIZES, 1, 32, experts=4, top=2, capacity=1.0, shared=True, gated=True)
    return experts.ExpertModel(config), (words(2, 6), words(2, 6))


def _gpt() -> Model:
    model = text.gpt(SIZES, parallel=True, joint=False, fused=True, gated=True, tied=True)
    return model, (words(2, 6), words(2, 6))


def _llama() -> Model:
    return text.Llama(2, 16, inner=24, heads=2, vocabulary=WORDS), (words(2, 6), words(2, 6))


def _randwire() -> Model:
    config = randwire._draw_config(np.random.default_rng(1), randwire.STATE, 8, 16, 1)
    sequence = torch.randn(3, 4, 16)
    return randwire.RecurrentNetwork(config), (sequence, torch.randn_like(sequence), sequence[0].clone())


def _ssm() -> Model:
    sizes = Sizes(4, 64, 2, 6, WORDS)
    model = ssm.state_space_model(sizes, states=4, chunks=2, attention_every=4, feed_forward=True)
    return model, (words(2, 6), words(2, 6))


def _gnn() -> Model:
    edges = torch.randint(6, (2, 9)), torch.randint(6, (2, 4))
    model = gnn.NodeClassifier(tuple(gnn.KINDS), 2, inputs=5, width=8, classes=CLASSES, all_layers=True)
    return model, (torch.randn(6, 5), torch.randint(CLASSES, (6,)), *edges)


def _t5() -> Model:
    config = t5.Config(1, 1, 16, 32, 2, WORDS, gated=True, tied=True)
    return t5.Translator(config), (words(2, 6), words(2, 4), words(2, 4))


def _switch() -> Model:
    config = experts.Config(SIZES, 1, 32, experts=4, top=2, capacity=1.0, einsum=True)
    model = experts.ExpertModel(config, experts.SwitchLayer)
    by_indices = replace(config, joint=True, einsum=False)
    model.blocks[1].experts = experts.SwitchLayer(by_indices)
    return model, (words(2, 6), words(2, 6))


def _resnet() -> Model:
    return images.resnet("grouped", (1, 1), 32, branches=2, squeeze=True, classes=CLASSES), pictures(2)


def _inception() -> Model:
    return images.inception([[[0, 4]], [[1, 3]]], width=8, classes=CLASSES), pictures(2)


def _vit() -> Model:
    patches = images.Patches(SIDE, 16, 16)
    return images.vit(patches, 2, 2, branches=2, classes=CLASSES, joint=True, fused=True), pictures(2)


FAMILIES: list[Callable[[], Model]] = [
    *(_cifar10, _ptb, _nmt, _resnet, _inception, _gpt, _bert, _vit),
    *(_moe, _randwire, _llama, _ssm, _gnn, _t5, _switch),
]
MODELS = {make.__name__.removeprefix("_"): make for make in FAMILIES}


def make(name: str) -> Model:
    """Makes the model of a family with drawn weights, in float64."""
    torch.manual_seed(0)
    module, inputs = MODELS[name]()
    for parameter in module.parameters():
        if parameter.dim() > 1:
            nn.init.normal_(parameter, std=0.3)
    return module.double(), tuple(each.double() if each.is_floating_point() else each for each in inputs)


def random_devices(graph: OpGraph, n_devices: int, seed: int) -> IntArray:
    """Draws a device for each placement unit."""
    rng = np.random.default_rng(seed)
    device_of, of_group = rng.integers(n_devices, size=graph.n_ops), dict[int, int]()
    for op, group in enumerate(graph.colocate.tolist()):
        if group >= 0:
            device_of[op] = of_group.setdefault(group, int(device_of[op]))
    return device_of


def plain_steps(
    module: nn.Module, inputs: Any, count: int, optimizer: str, **options: Any
) -> tuple[list[float], dict[str, Tensor], dict[str, Tensor]]:
    """Trains a copy of a module without placing it.

    Returns:
        The losses, the gradients of the last step, and the state after it.
    """
    model = copy.deepcopy(module)
    chosen: Any = NAMED[optimizer]
    chosen = chosen(model.parameters(), **options)
    losses = []
    for _ in range(count):
        chosen.zero_grad()
        loss, _ = find_loss(model(**inputs) if isinstance(inputs, dict) else model(*inputs))
        loss.backward()
        chosen.step()
        losses.append(float(loss.detach()))
    gradients = {path: each.grad for path, each in model.named_parameters() if each.grad is not None}
    return losses, gradients, model.state_dict()


def assert_trains_as_plain(
    runner: Any, module: nn.Module, inputs: Any, count: int, **options: Any
) -> list[float]:
    """Asserts that losses, gradients and state of a runner equal those of `plain_steps` by SGD.

    Returns:
        The losses.
    """
    losses, gradients, state = plain_steps(module, inputs, count, "sgd", **options)
    assert [float(runner.step(*inputs)) for _ in range(count)] == pytest.approx(losses, rel=1e-9)
    dense = {path: gradient.to_dense() for path, gradient in gradients.items()}
    torch.testing.assert_close(runner.gradients(), dense, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(runner.state_dict(), dict(state), rtol=1e-9, atol=1e-9)
    return losses
