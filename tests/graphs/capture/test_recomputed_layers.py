"""Layers under `torch.utils.checkpoint` run again in the backward pass, as far as torch runs them again."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, fx, nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential, create_selective_checkpoint_contexts
from torch.utils.flop_counter import FlopCounterMode

from graphs.capture import tracing
from graphs.capture.capture import capture
from tests.graphs.capture.capture_cases import heard

Run = Callable[..., Any]
SAVING = partial(create_selective_checkpoint_contexts, [torch.ops.aten.addmm.default])
CONTEXTS = partial(lambda: (nullcontext(), nullcontext()))
plain: Run = partial(checkpoint, use_reentrant=False)
reentrant: Run = partial(checkpoint, use_reentrant=True)


def nested(layer: nn.Module, x: Tensor) -> Tensor:
    return plain(lambda y: reentrant(lambda z: plain(layer, z.sin()).tanh(), y).exp(), x)  # type: ignore[no-any-return]


KINDS: dict[str, Run] = {
    "no early stop": partial(plain, early_stop=False),
    "contexts": partial(plain, context_fn=CONTEXTS),
    "in two parts": lambda layer, x: checkpoint_sequential(layer, 2, x, use_reentrant=False),
    "without gradients": lambda layer, x: x + torch.no_grad()(plain)(layer, x),
    "plain": plain,
    "reentrant": reentrant,
    "saving products": partial(plain, context_fn=SAVING),
    "nested": nested,
}


class Net(nn.Module):
    """A layer that runs by itself, then two that `run` runs."""

    def __init__(self, run: Run, *more: nn.Module) -> None:
        super().__init__()
        self.first, self.run = nn.Linear(4, 4), run
        self.layers = nn.ModuleList(
            nn.Sequential(nn.Linear(4, 6), *more, nn.Tanh(), nn.Linear(6, 4)) for _ in range(2)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + self.run(layer, x)
        return x.square().mean()


@pytest.mark.parametrize("run", KINDS.values(), ids=KINDS)
def test_products_run_as_often_as_in_torch(run: Run) -> None:
    model, x = Net(run), torch.randn(3, 4)
    with FlopCounterMode(display=False) as counter:
        model(x).backward()
    graph = capture(model, x, notify=pytest.fail)
    is_product = ["mm" in name for name in graph.op_names]
    assert graph.flops[is_product].sum() == counter.get_total_flops()
    assert not any(name.startswith("recompute") for name in capture(model, x, training=False).op_names)


def test_a_second_run_is_right_before_the_backward_pass_of_its_layer() -> None:
    names = capture(Net(plain), torch.randn(3, 4)).op_names
    again = [op for op, name in enumerate(names) if name.startswith("recompute/")]
    assert [names[op] for op in again] == [
        f"recompute/layers.{layer}.{op}" for layer in (1, 0) for op in ("0/addmm", "1/tanh")
    ]
    assert names[again[1] + 1].startswith("gradients/layers.1.2/")
    assert names[again[3] + 1].startswith("gradients/layers.0.2/")


def lines(model: nn.Module, **settings: Any) -> list[str]:
    return heard(model, torch.randn(3, 4), **settings)[1]


def test_what_differs_from_torch_is_said_in_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    (kept,) = lines(Net(plain, nn.Dropout(0.2)))
    assert "random numbers of layers under torch.utils.checkpoint are kept" in kept
    (once,) = lines(Net(reentrant, nn.BatchNorm1d(6)))
    assert "change buffers once a step" in once
    untrained = Net(lambda layer, x: reentrant(layer, x.detach()))
    (line,) = lines(untrained)
    assert "gives no gradients where no argument needs one" in line
    assert "adam/layers.0.0.weight" not in capture(untrained, torch.randn(3, 4)).op_names
    assert not lines(untrained, training=False)
    monkeypatch.setattr(tracing, "trace_joint", lambda step: 1 / 0)
    assert any("captured as a plain call" in line for line in lines(Net(plain)))


def test_a_trace_that_needs_values_within_a_layer_marks_no_later_one() -> None:
    model = Net(lambda layer, x: plain(lambda y: layer(y) * int(y.isfinite().sum().item()), x))
    assert "recompute/layers.1.0/addmm" in capture(model, torch.ones(3, 4), notify=lambda line: None).op_names
    assert not fx.traceback.current_meta
