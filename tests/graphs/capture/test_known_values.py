"""Values on which a step depends are those of the example inputs; what a trace loses is named or refused."""

from __future__ import annotations

import itertools
import random
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.ao import quantization

from graphs.capture.capture import CaptureError, capture, capture_step
from tests.graphs.capture.capture_cases import CONVNET_INPUTS, Calls, Convnet, heard

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric compiles scripts where it is imported
    from torch_geometric.data import Data
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

SAID = "shapes that depend on values are those of the example inputs, and so are branches"
X = torch.tensor([[1.0, -1.0, 2.0, 3.0], [-4.0, 1.0, 1.0, 1.0], [2.0, 0.0, -1.0, 5.0]])
ZEROS = torch.zeros(3, 4)
COUNTS = torch.tensor([2, 1])
EDGES = torch.tensor([[0, 1, 2, 3, 3, 4], [1, 2, 0, 3, 4, 0]])


class Routed(nn.Module):
    """A mixture whose experts see the tokens that `nonzero` or a mask picks."""

    def __init__(self, by_mask: bool, dropout: float = 0.0) -> None:
        super().__init__()
        self.by_mask, self.drop = by_mask, nn.Dropout(dropout)
        self.gate = nn.Linear(8, 3)
        self.experts = nn.ModuleList(nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.drop(x)
        weights, chosen = self.gate(x).softmax(-1).topk(2)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, rank = torch.where(chosen == number)
            if self.by_mask:
                mask = (chosen[:, 0] == number) | (chosen[:, 1] == number)
                out[mask] = out[mask] + expert(x[mask])
            else:
                out.index_add_(0, token, expert(x[token]) * weights[token, rank, None])
        return out


class Gnn(nn.Module):
    """Two layers of a graph network with a loss over some nodes."""

    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        self.first, self.second = make(6, 8), make(8, 3)

    def forward(self, x: Tensor, edges: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
        scores = self.second(self.first(x, edges).relu(), edges)
        return F.cross_entropy(scores[mask], labels[mask])


def early_exit(layer: nn.Module, x: Tensor) -> Tensor:
    return layer(x) if x.mean() > 0 else layer(layer(x))


def two_reasons(layer: nn.Module, x: Tensor) -> Tensor:
    """One made-up answer would hide the branch that both values take together."""
    return layer(x) if bool(x.any()) or float(x.sum()) > 50 else -layer(x)


def parts(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    return torch.cat([layer(part).sum(0, keepdim=True) for part in x.split(counts.tolist())])


def attend(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    """Draws no random numbers, as nothing is dropped."""
    x = F.scaled_dot_product_attention(layer(x)[None], x[None], x[None])[0]
    return parts(layer, x, counts)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[Any]]] = {
    "early exit": (early_exit, (X,), [True]),
    "two reasons": (two_reasons, (ZEROS,), [False, 0.0]),
    "float": (lambda layer, x: layer(x) * float(x.sum()), (X,), [10.0]),
    "tolist": (parts, (X, COUNTS), [2, 1]),
    "masked": (lambda layer, x, n: layer(x) * n[n > 1].tolist()[0], (X, COUNTS), [2, [(1,)]]),
    "items": (lambda layer, x, n: layer(x) * torch.tensor([n.sum(), n[0], 7, 8]), (X, COUNTS), [3, 2]),
    "attention": (attend, (X, COUNTS), [2, 1]),
    "range": (lambda layer, x, n: sum(layer(x) for _ in range(int(n))), (X, torch.tensor(2)), [2]),
    "mask": (lambda layer, x: F.mse_loss(layer(x)[x[:, 0] > 0], x[x[:, 0] > 0]), (X,), [[(2, 4)]] * 2),
    "select": (lambda layer, x: layer(x).masked_select(x > 1), (X,), [[(4,)]]),
    "nonzero": (lambda layer, x: layer(x)[x[:, 1].nonzero()[:, 0]], (X,), [[(2, 1)], [(2, 4)]]),
    "unique": (lambda layer, x, n: layer(x)[n.unique() - 1], (X, COUNTS), [[(2,), (0,), (0,)], [(2, 4)]]),
    "repeat": (lambda layer, x, n: layer(x[:2]).repeat_interleave(n, 0), (X, COUNTS), [[(3,)]]),
    "equal": (lambda layer, x: layer(x) if torch.equal(x, x) else x, (X,), [True]),
}


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("name", FUNCTIONS)
def test_values_of_the_inputs_decide_and_are_held(name: str, training: bool) -> None:
    function, inputs, held = FUNCTIONS[name]
    notices: list[str] = []
    captured = capture_step(Calls(function), inputs, training=training, notify=notices.append)
    assert [value for value in captured.trace.held.values() if value != [(3, 4)]] == held
    assert SAID in notices[0]
    assert not any("random" in notice for notice in notices)
    assert "layer" in captured.graph.modules


def test_a_loop_as_long_as_a_value_says_is_not_run_for_made_up_ones() -> None:
    layer, calls = Calls(FUNCTIONS["range"][0]), list[int]()
    layer.layer.register_forward_hook(lambda *_: calls.append(1))
    capture_step(layer, FUNCTIONS["range"][1], training=False, notify=lambda _: None)
    assert 2 < len(calls) < 5_000


@pytest.mark.parametrize("by_mask", [True, False])
def test_experts_cost_what_the_router_sends_them(by_mask: bool) -> None:
    torch.manual_seed(0)
    model, x = Routed(by_mask), torch.randn(10, 8)
    graph = capture(model, x, training=False, notify=lambda _: None)
    chosen = model.gate(x).topk(2).indices
    for number in range(3):
        rows = int((chosen == number).sum())
        assert graph.flops[graph.op_names.index(f"experts.{number}/addmm")] == 2 * rows * 8 * 8
    trained = capture(model, x, notify=lambda _: None)
    assert {f"experts.{number}" for number in range(3)} <= {
        module
        for module, phase, kind in zip(trained.modules, trained.phases, trained.op_types, strict=True)
        if phase == "backward" and kind == "aten.mm"
    }


@pytest.mark.parametrize(
    "make",
    [GCNConv, GATConv, SAGEConv, lambda n, m: GINConv(nn.Linear(n, m))],
    ids=["gcn", "gat", "sage", "gin"],
)
def test_graph_networks_are_captured_also_on_the_meta_device(make: Callable[[int, int], nn.Module]) -> None:
    inputs = (torch.randn(5, 6), EDGES, torch.zeros(5).long(), torch.arange(5) < 3)
    graph = capture(Gnn(make), inputs, name="gnn", notify=lambda _: None)
    assert sum(module.startswith("first") for module in graph.modules) > 8
    on_meta = Gnn(make).to("meta")  # the values that shapes depend on are the inputs' alone
    assert capture(on_meta, inputs, name="gnn", notify=lambda _: None).flops.tolist() == graph.flops.tolist()


def test_values_of_weights_that_are_not_there_are_refused() -> None:
    with pytest.raises(CaptureError, match=r"needs .*, and a trace has shapes only"):
        capture(Routed(True).to("meta"), torch.zeros(3, 8))


def test_random_numbers_behind_a_shape_are_said_and_drawn_alike() -> None:
    before = torch.get_rng_state()
    notices: list[str] = []
    model, x = Routed(False, dropout=0.5), torch.randn(10, 8)
    torch.set_rng_state(before)
    first, again = (capture(model, x, notify=notices.append) for _ in range(2))
    assert torch.equal(torch.get_rng_state(), before)
    assert first.flops.tolist() == again.flops.tolist()
    assert any("one draw of random numbers" in notice for notice in notices)


class Normed(nn.Module):
    """A batch norm, an in-place change of a buffer, and a mask."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(4)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.steps.add_(1)
        return self.norm(x)[x[:, 0] > 0]


def test_the_model_and_its_inputs_are_not_changed() -> None:
    model, x = Normed(), X.clone()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    captured = capture_step(model, x, notify=lambda _: None)
    assert {key: value.tolist() for key, value in model.state_dict().items()} == {
        key: value.tolist() for key, value in before.items()
    }
    assert torch.equal(x, X)
    assert captured.step.known_values is None, "a capture keeps no value"
    assert "steps" in captured.trace.new_values


def test_a_step_that_needs_no_values_is_not_run() -> None:
    assert not capture_step(Convnet(), CONVNET_INPUTS, notify=pytest.fail).trace.held


def energy(layer: nn.Module, x: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x, create_graph=True)
    return force.square().mean()


def given(layer: nn.Module, x: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    return force.square().mean()


@pytest.mark.parametrize(("function", "x"), [(energy, X.clone()), (given, X.clone().requires_grad_())])
def test_gradients_in_forward_keep_module_names(function: Callable[..., Any], x: Tensor) -> None:
    graph = capture(Calls(function), x, notify=pytest.fail)
    assert "layer/mm" in graph.op_names or "layer/addmm" in graph.op_names


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
    "generator": (
        Layer(lambda m, x: m.layer(x) + torch.randn(4, generator=m.draws), draws=torch.Generator()),
        "draws from a torch.Generator",
    ),
    "seed": (Layer(seeded), "seeds torch's random numbers"),
    "frozen": (Layer(lambda m, x: m.layer(x)).requires_grad_(False), "nothing is trained"),
}


@pytest.mark.parametrize("name", NAMED)
def test_what_a_trace_loses_is_named(name: str) -> None:
    module, words = NAMED[name]
    before = random.getstate(), str(np.random.get_state())  # noqa: NPY002
    attributes = repr(vars(module))
    _, (notice,) = heard(module, ZEROS, loss=torch.mean)
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
    module = Layer(silent, calls=0, last=None, table=None, log=[])
    captured = capture_step(module, ZEROS, loss=torch.mean, notify=pytest.fail)
    assert captured.trace.held == {}


FOREIGN = nn.Parameter(torch.ones(4))


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
        lambda: Layer(lambda m, x: m.layer(x) * FOREIGN),
        r"test_known_values\.py:\d+: a tensor \[4\] that",
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
        capture(make(), ZEROS, loss=torch.mean, notify=lambda _: None)


class Batch:
    def __init__(self, x: Tensor, scale: float = 2.0) -> None:
        self.x, self.scale = x, scale


@pytest.mark.parametrize("make", [Batch, lambda x: Data(x=x, scale=2.0)])
def test_objects_of_tensors_are_inputs(make: Callable[[Tensor], Any]) -> None:
    step = capture_step(
        Layer(lambda m, batch: m.layer(batch.x) * batch.scale),
        (make(ZEROS),),
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
    assert {"0", "1"} <= set(capture(module, ZEROS).modules)
    assert not [kind for kind in capture(module, ZEROS, training=False).op_types if "bernoulli" in kind]
    assert module[1].training
