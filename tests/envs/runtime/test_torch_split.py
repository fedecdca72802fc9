"""Stages of models that call a module several times: real steps equal those of the unsplit module."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from agent import place
from graphs.capture.structures import split_batch


class Twice(nn.Module):
    """Calls a block twice, with a buffer and a parameter of its own in between."""

    def __init__(self, block: nn.Module) -> None:
        super().__init__()
        self.block, self.scale = block, nn.Parameter(torch.full((4,), 1.5))
        self.shift = nn.Buffer(torch.full((4,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        return self.block(self.block(x) * self.scale + self.shift) * self.scale


def linear() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh())


class Chain(nn.Module):
    """Calls layers in turn, and the one that they share after each; the same module may stand in both."""

    def __init__(self, layers: list[nn.Module], shared: nn.Module | None = None) -> None:
        super().__init__()
        self.layers, self.shared, self.head = nn.ModuleList(layers), shared, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x) if self.shared is None else self.shared(layer(x))
        return self.head(x).square().mean()


class Words(nn.Module):
    """Reads an embedding twice, and again as the head: by a tied module, or by its weight."""

    def __init__(self, *, is_tied: bool) -> None:
        super().__init__()
        self.words, self.is_tied = nn.Embedding(9, 4), is_tied
        self.layers = nn.ModuleList(linear() for _ in range(4))
        self.head = nn.Linear(4, 9, bias=False)
        if is_tied:
            self.head.weight = self.words.weight

    def forward(self, words: Tensor) -> Tensor:
        x = self.words(words) + self.words(words.flip(1))
        for layer in self.layers:
            x = layer(x)
        again = self.head(x) if self.is_tied else nn.functional.linear(x, self.words.weight)
        return (again + self.head(x.tanh())).square().mean()


def albert() -> nn.Module:
    from transformers import AlbertConfig, AlbertForMaskedLM

    sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 8, "intermediate_size": 8}
    config = AlbertConfig(**sizes, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=8)
    return AlbertForMaskedLM(config)


def in_several_lists() -> nn.Module:
    block = Twice(linear())
    return Chain([block, linear(), block, nn.Sequential(linear(), block)])


WORDS = torch.arange(24).reshape(8, 3) % 9
MODELS: dict[str, Callable[[], nn.Module]] = {
    "twice within a layer": lambda: Chain([Twice(linear()) for _ in range(4)]),
    "twice within what is called twice": lambda: Chain([Twice(Twice(linear())) for _ in range(4)]),
    "one norm": lambda: Chain([linear() for _ in range(4)], nn.LayerNorm(4)),
    "batch norm twice": lambda: Chain([Twice(nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())) for _ in range(4)]),
    "in several lists": in_several_lists,
    "tied head": lambda: Words(is_tied=True),
    "weight as the head": lambda: Words(is_tied=False),
    "albert": albert,
    "name of torch's": lambda: nn.Sequential(*(NamedAsTorchDoes() for _ in range(4))),
}


class NamedAsTorchDoes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.add_module("w@1", nn.Linear(4, 4))

    def forward(self, x: Tensor) -> Tensor:
        return getattr(self, "w@1")(x).tanh()


@pytest.fixture
def process_group(tmp_path: Path) -> Iterator[None]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'group'}", rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def planned(module: nn.Module, batch: Any, n_stages: int) -> Any:
    settings: dict[str, Any] = {"placer": "equal-time", "optimizer": None, "split": 4}
    return place(module, batch, cluster="4xv100:1", pipeline=f"interleaved-1f1b:{n_stages}", **settings)


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.usefixtures("process_group")
def test_modules_that_are_called_several_times_get_the_gradients_of_the_whole(name: str) -> None:
    torch.manual_seed(0)
    module = MODELS[name]().double().eval() if name == "albert" else MODELS[name]().double()
    batch: Any = WORDS if isinstance(module, Words) else torch.randn(8, 4, dtype=torch.float64)
    batch = {"input_ids": WORDS, "labels": WORDS} if name == "albert" else batch
    plain, stages = copy.deepcopy(module), planned(module, batch, 2).pipeline_stages(module)
    assert len(stages.cuts.modules) == 1
    losses = []
    for inputs in split_batch(batch, 4):
        made = plain(**inputs).loss if isinstance(inputs, dict) else plain(*inputs)
        losses.append(made.mean())
        (losses[-1] / 4).backward()
    torch.testing.assert_close(stages.step(batch), torch.stack(losses).detach(), rtol=1e-9, atol=1e-12)
    for one, other in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(stages.state_dict(), dict(plain.state_dict()), rtol=1e-9, atol=1e-12)


@pytest.mark.usefixtures("process_group")
def test_a_buffer_that_several_stages_change_is_one_line() -> None:
    module = Chain([linear() for _ in range(4)], nn.BatchNorm1d(4))
    stages = planned(module, torch.zeros(8, 4), 3).pipeline_stages(module)
    with pytest.raises(ValueError, match=r"^buffer 'shared.running_mean' changes, and stages 0 and 1 use it"):
        stages.step(torch.zeros(8, 4))
