"""Stages that run forward again train as stages that do not, and hold fewer bytes in between."""

from __future__ import annotations

import copy
import weakref
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from agent import Pipeline, place
from envs.cluster.presets import get_cluster
from envs.pipeline.stages import Stages
from envs.runtime.torch_split import StageModule


class Dropping(nn.Module):
    """Draws random numbers between layers, and changes statistics."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            *(
                nn.Sequential(nn.Linear(64, 64), nn.BatchNorm1d(64), nn.Tanh(), nn.Dropout(0.5))
                for _ in range(4)
            )
        )
        self.double()

    def forward(self, x: Tensor) -> Tensor:
        return self.layers(x).square().mean()  # type: ignore[no-any-return]


def tensors_in(values: Any) -> Iterator[Tensor]:
    return (each for each in tree_leaves(values) if isinstance(each, Tensor))


class HeldBytes(TorchDispatchMode):
    """Counts the bytes of the tensors that ops made and that are still held."""

    def __init__(self) -> None:
        super().__init__()
        self._storages: dict[int, weakref.ref[Any]] = {}

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        made = function(*args, **kwargs or {})
        for each in tensors_in(made):
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
    module, found, held = Dropping().layers, [], []
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
    module, batch = Dropping(), torch.randn(4 * 4096, 64, dtype=torch.float64)
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
