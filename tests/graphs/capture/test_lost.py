"""What a trace does not carry over is named, or refused, where a model is captured."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization

from graphs.capture.capture import CaptureError, capture, capture_step

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric compiles scripts where it is imported
    from torch_geometric.data import Data

X = torch.zeros(3, 4)


class Layer(nn.Module):
    """A linear layer in a function of the module and the input."""

    def __init__(self, function: Callable[[Any, Any], Tensor], **attributes: Any) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(4, 4), function
        vars(self).update(attributes)

    def forward(self, x: Any) -> Tensor:
        return self.function(self, x)


def keeps(module: Any, x: Tensor) -> Tensor:
    """Reads what the step before has left."""
    y = module.layer(x)
    kept, module.kept = module.kept, y.detach()
    return y if kept is None else y + kept


def counts(module: Any, x: Tensor) -> Tensor:
    module.state["calls"] += 1
    return module.layer(x) * module.state["calls"]


def grows(module: Any, x: Tensor) -> Tensor:
    if not hasattr(module, "new"):
        module.new = nn.Linear(4, 4)
    return module.new(module.layer(x))


def noisy(module: Any, x: Tensor) -> Tensor:
    return module.layer(x) + torch.randn(x.shape, generator=module.generator)


CLOCK = itertools.count()


def seeded(module: Any, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return module.layer(x + torch.randn_like(x))


NAMED: dict[str, tuple[nn.Module, str]] = {
    "kept": (Layer(keeps, kept=None), "changes kept"),
    "dictionary": (Layer(counts, state={"calls": 0}), "changes state"),
    "new layer": (Layer(grows), "changes new"),
    "own generator": (Layer(lambda m, x: m.layer(x) * m.draws.random(), draws=random.Random(0)), "draws"),
    "Python": (Layer(lambda m, x: m.layer(x) * random.random()), "random numbers from Python"),
    "NumPy": (Layer(lambda m, x: m.layer(x) * float(np.random.rand())), "from NumPy"),  # noqa: NPY002
    "clock": (Layer(lambda m, x: m.layer(x) * next(CLOCK)), "differ from run to run"),
    "generator": (Layer(noisy, generator=torch.Generator()), "draws from a torch.Generator"),
    "seed": (Layer(seeded), "seeds torch's random numbers"),
    "frozen": (Layer(lambda m, x: m.layer(x)).requires_grad_(False), "nothing is trained"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_a_trace_loses_is_named(name: str) -> None:
    module, words = NAMED[name]
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    attributes = repr(vars(module))
    notices: list[str] = []
    capture(module, X, loss=torch.mean, notify=notices.append)
    (notice,) = notices
    assert words in notice
    assert before == (random.getstate(), str(np.random.get_state()))  # noqa: NPY002
    assert repr(vars(module)) == attributes


def silent(module: Any, x: Tensor) -> Tensor:
    """Changes attributes on which nothing depends, and reads constants that it has made once."""
    module.calls += 1
    module.last = y = module.layer(x)
    if module.table is None:
        module.table = torch.ones(4).cumsum(0)
    module.log.append((float(y.mean()), y.sum().item(), bool((y > 0).any())))
    return y * module.table


def test_nothing_is_said_of_what_decides_nothing() -> None:
    notices: list[str] = []
    module = Layer(silent, calls=0, last=None, table=None, log=[])
    captured = capture_step(module, X, loss=torch.mean, notify=notices.append)
    assert notices == []
    assert captured.trace.held == {}


def test_values_that_decide_are_still_held() -> None:
    """One made-up answer would hide a branch that two values take together."""

    def branches(module: Any, x: Tensor) -> Tensor:
        return module.layer(x) if bool(x.any()) or float(x.sum()) > 50 else -module.layer(x)

    captured = capture_step(Layer(branches), X, loss=torch.mean, notify=lambda _: None)
    assert list(captured.trace.held.values()) == [False, 0.0]


def bound(parameter: nn.Parameter) -> nn.Module:
    return Layer(lambda m, x: m.layer(x) * parameter)


def accumulates() -> nn.Module:
    module = Layer(lambda m, x: m.layer(x))
    module.layer.weight.register_post_accumulate_grad_hook(lambda _: None)
    return module


def reassigns(module: Any, x: Tensor) -> Tensor:
    module.layer.weight = nn.Parameter(module.layer.weight * 2)
    return module.layer(x)


def resizes(module: Any, x: Tensor) -> Tensor:
    module.held = torch.zeros(len(module.held) + 1)
    return module.layer(x) + module.held.sum()


def prepared() -> nn.Module:
    module = nn.Sequential(nn.Linear(4, 4))
    module.qconfig = quantization.get_default_qat_qconfig("fbgemm")
    return quantization.prepare_qat(module.train())  # type: ignore[no-any-return]


REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "foreign parameter": (
        lambda: bound(nn.Parameter(torch.ones(4))),
        r"test_lost\.py:\d+: a tensor \[4\] that",
    ),
    "accumulated gradient": (accumulates, "parameter 'layer.weight' has a hook"),
    "assigned parameter": (lambda: Layer(reassigns), "assigns a tensor to parameter 'layer.weight'"),
    "another shape": (lambda: Layer(resizes, held=torch.zeros(1)), r"'held' the shape \[2\].* once"),
    "scripted": (lambda: nn.Sequential(torch.jit.script(nn.Linear(4, 4))), "'0' is TorchScript"),
    "observers": (prepared, "run the module once before it is placed"),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_carried_is_refused(name: str) -> None:
    make, words = REFUSED[name]
    with pytest.raises(CaptureError, match=words):
        capture(make(), X, loss=torch.mean, notify=lambda _: None)


class Batch:
    def __init__(self, x: Tensor, scale: float = 2.0) -> None:
        self.x, self.scale = x, scale


@pytest.mark.parametrize("make", [Batch, lambda x: Data(x=x, scale=2.0)])
def test_objects_of_tensors_are_inputs(make: Callable[[Tensor], Any]) -> None:
    step = capture_step(
        Layer(lambda m, batch: m.layer(batch.x) * batch.scale),
        (make(X),),
        loss=torch.mean,
        notify=lambda _: None,
    )
    assert "input.0" in step.op_of_source
    other = make(torch.ones(3, 4))
    assert step.step.flat_inputs((other,))[0].equal(torch.ones(3, 4))
    other.scale = 3.0
    with pytest.raises(CaptureError, match=r"an input is 3\.0; .* at the capture, 2\.0"):
        step.step.flat_inputs((other,))


def test_a_closure_that_calls_the_module_keeps_module_names() -> None:
    module = nn.Sequential(nn.Linear(4, 4), nn.Dropout(0.5))
    plain = module.forward
    module.forward = lambda x: plain(x).mean()  # type: ignore[method-assign]
    assert {"0", "1"} <= set(capture(module, X).modules)
    assert not [kind for kind in capture(module, X, training=False).op_types if "bernoulli" in kind]
    assert module[1].training
