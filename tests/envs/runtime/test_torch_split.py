"""Stages of models of all kinds: real steps, recomputed or not, equal those of the unsplit module."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agent import Pipeline, place
from envs.cluster.presets import get_cluster
from envs.pipeline.stages import Stages
from envs.runtime.torch_split import StageModule
from envs.runtime.torch_stages import TorchStages
from graphs.capture.structures import split_batch
from tests.envs.runtime.small_models import Scaling


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


class Centred(nn.Module):
    """Assigns to a buffer that its backward pass reads, and averages over all batches."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm = nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None)
        self.register_buffer("centre", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        y = x + self.norm(self.layer(x)).tanh() * self.centre
        self.centre = self.centre * 0.5 + y.detach().mean(0) * 0.5
        return y


class UNet(nn.Module):
    """Two levels down and up, with skips, and buffers that change with every microbatch."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.ModuleList(nn.Conv2d(3 if not at else 4, 4, 3, padding=1) for at in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(4) for _ in range(2))
        self.middle = nn.Conv2d(4, 4, 3, padding=1)
        self.up = nn.ModuleList(nn.Conv2d(8, 4, 3, padding=1) for _ in range(2))

    def forward(self, image: Tensor) -> Tensor:
        skips = []
        for convolution, norm in zip(self.down, self.norms, strict=True):
            skips.append(norm(convolution(image)).relu())
            image = nn.functional.avg_pool2d(skips[-1], 2)
        image = self.middle(image).relu()
        for convolution in self.up:
            image = nn.functional.interpolate(image, scale_factor=2)
            image = convolution(torch.cat([image, skips.pop()], 1)).relu()
        return image.square().mean()


class Packed(nn.Module):
    """Sums of the documents that lie side by side in a batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(linear() for _ in range(4)))

    def forward(self, tokens: Tensor, offsets: Tensor) -> Tensor:
        document = torch.bucketize(torch.arange(len(tokens)), offsets[1:], right=True)
        pooled = tokens.new_zeros(len(offsets) - 1, 4).index_add(0, document, self.layers(tokens))
        return pooled.square().mean()


class Noisy(nn.Module):
    """Draws random numbers in an op without inputs, and in dropout after statistics."""

    def __init__(self, width: int = 4) -> None:
        super().__init__()
        parts = (
            nn.Sequential(nn.Linear(width, width), nn.BatchNorm1d(width), nn.Tanh(), nn.Dropout(0.5))
            for _ in range(4)
        )
        self.layers, self.width = nn.Sequential(*parts).double(), width

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x + torch.rand(self.width, dtype=x.dtype)).square().mean()


def albert() -> nn.Module:
    from transformers import AlbertConfig, AlbertForMaskedLM

    sizes = {"vocab_size": 9, "embedding_size": 4, "hidden_size": 8, "intermediate_size": 8}
    config = AlbertConfig(**sizes, num_hidden_layers=3, num_attention_heads=2, max_position_embeddings=8)
    return AlbertForMaskedLM(config)


def in_several_lists() -> nn.Module:
    block = Twice(linear())
    return Chain([block, linear(), block, nn.Sequential(linear(), block)])


WORDS = torch.arange(24).reshape(8, 3) % 9
X = torch.randn(8, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
BATCHES: dict[str, Any] = {
    **dict.fromkeys(("tied head", "weight as the head", "sparse"), WORDS),
    "albert": {"input_ids": WORDS, "labels": WORDS},
    "skips": X.tile(1, 48).view(8, 3, 8, 8),
    "packed": (X, torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8])),
    "custom op": X.tile(1, 2)[:, :6],
}
"""Batches of models that do not take `X`."""
MODELS: dict[str, Callable[[], nn.Module]] = {
    "twice within a layer": lambda: Chain([Twice(linear()) for _ in range(4)]),
    "twice within what is called twice": lambda: Chain([Twice(Twice(linear())) for _ in range(4)]),
    "one norm": lambda: Chain([linear() for _ in range(4)], nn.LayerNorm(4)),
    "batch norm twice": lambda: Chain([Twice(nn.Sequential(nn.BatchNorm1d(4), nn.Tanh())) for _ in range(4)]),
    "in several lists": in_several_lists,
    "tied head": lambda: Words(is_tied=True),
    "weight as the head": lambda: Words(is_tied=False),
    "albert": albert,
    "assigned buffer": lambda: nn.Sequential(*(Centred() for _ in range(4))),
    "skips": UNet,
    "packed": Packed,
    "sparse": lambda: nn.Sequential(nn.EmbeddingBag(9, 4, sparse=True), *(linear() for _ in range(4))),
    "custom op": Scaling,
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


def stages_of(module: nn.Module, batch: Any, n_stages: int = 2, recomputed: Any = ()) -> TorchStages:
    settings: dict[str, Any] = {"placer": "equal-time", "optimizer": None, "split": 4}
    settings |= {"cluster": "4xv100:1", "pipeline": f"interleaved-1f1b:{n_stages}"}
    plan = place(module, batch, **settings)
    stages = replace(plan.stages, recomputed=recomputed)
    return TorchStages(plan.objective.pipelined, stages, plan.captured, module)


@pytest.mark.parametrize(
    ("name", "recomputed"), [*((name, ()) for name in MODELS), ("assigned buffer", (0, 1)), ("skips", (0, 1))]
)
@pytest.mark.usefixtures("process_group")
def test_stages_get_the_gradients_of_the_whole(name: str, recomputed: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    module, batch = MODELS[name]().double(), BATCHES.get(name, X)
    module.train(name != "albert")
    plain, stages = copy.deepcopy(module), stages_of(module, batch, recomputed=recomputed)
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
    stages = stages_of(module, torch.zeros(8, 4), 3)
    with pytest.raises(ValueError, match=r"^buffer 'shared.running_mean' changes, and stages 0 and 1 use it"):
        stages.step(torch.zeros(8, 4))


@pytest.mark.usefixtures("process_group")
def test_random_numbers_are_new_in_each_step_and_those_of_the_first_run_in_a_second_one() -> None:
    values = []
    for recomputed in ((), (0, 1)):
        torch.manual_seed(0)
        module = Noisy()
        stages = stages_of(module, X, recomputed=recomputed)
        torch.manual_seed(1)
        losses = [stages.step(X) for _ in range(2)]
        assert (losses[0] != losses[1]).all()
        values.append([*losses, *(each.grad for each in module.parameters()), *module.buffers()])
    for one, other in zip(*values, strict=True):
        assert torch.equal(one, other)


@pytest.mark.usefixtures("process_group")
def test_hooks_of_gradients_run() -> None:
    module = nn.Sequential(*(linear() for _ in range(4))).double()
    module[0][0].weight.register_hook(torch.zeros_like)
    stages_of(module, X).step(X)
    assert not module[0][0].weight.grad.any()
    assert module[0][0].bias.grad.all()


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that ops made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **kwargs or {})
        for each in tree_leaves(made):
            if isinstance(each, Tensor):
                storage = each.untyped_storage()
                self._storages[storage._cdata] = weakref.ref(storage)
        return made

    @property
    def count(self) -> int:
        """Bytes."""
        return sum(storage.nbytes() for each in self._storages.values() if (storage := each()) is not None)


class OneResult(nn.Sequential):
    """Returns a tuple, as parts of stages do."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (super().forward(x),)


def test_a_stage_of_torch_frees_its_activations_and_leaves_buffers_and_random_numbers_alone() -> None:
    torch.manual_seed(0)
    module, found, held = Noisy(64).layers, [], []
    for recomputes in (False, True):
        part = OneResult(copy.deepcopy(module))
        changed = [path for path, _ in part.named_buffers()]
        stage = StageModule(part, ["x"], ["y"], ["x"], ["y"], recomputes=recomputes, changed=changed)
        torch.manual_seed(1)
        x = [torch.randn(64, 64, dtype=torch.float64, requires_grad=True) for _ in range(2)]
        with HeldBytes() as made:
            outputs = [stage(each)[0] for each in x]
            held.append(made.count)
        torch.stack(outputs).square().sum().backward()
        gradients = [each.grad for each in (*x, *part.parameters())]
        found.append([*outputs, *gradients, *part.buffers(), torch.rand(1)])
    assert held[1] < 0.5 * held[0]
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_a_module_that_does_not_fit_otherwise_is_placed_with_recomputation() -> None:
    torch.manual_seed(0)
    module, batch = Noisy(64), torch.randn(4 * 4096, 64, dtype=torch.float64)
    settings: dict[str, Any] = {"split": 4, "budget": 60, "optimizer": "sgd"}
    memory = place(module, batch, cluster="4xv100:2", pipeline="gpipe", **settings).step_time.peak_bytes.max()
    cluster = get_cluster("4xv100:2")
    devices = tuple(replace(each, memory_bytes=0.5 * memory) for each in cluster.devices)
    small = replace(cluster, devices=devices, name="small")
    without = Pipeline("gpipe", 4, may_recompute=False)
    assert not place(module, batch, cluster=small, pipeline=without, **settings).step_time.fits
    plan = place(module, batch, cluster=small, pipeline="gpipe", **settings)
    assert plan.step_time.fits
    assert "recomputed" in plan.explain()
    stages: Stages = plan.stages
    assert stages.recomputed
    assert plan.pipeline_stages(module).cuts.stages.recomputed == stages.recomputed
