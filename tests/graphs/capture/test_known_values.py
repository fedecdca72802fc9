"""Steps whose shapes or branches depend on values are captured with those of the example inputs."""

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from graphs.capture.capture import CaptureError, capture, capture_step
from tests.graphs.capture.capture_cases import Calls, Convnet

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch_geometric compiles scripts where it is imported
    from torch_geometric.nn import GATConv, GCNConv, GINConv, SAGEConv

SAID = "shapes that depend on values are those of the example inputs, and so are branches"
X = torch.tensor([[1.0, -1.0, 2.0, 3.0], [-4.0, 1.0, 1.0, 1.0], [2.0, 0.0, -1.0, 5.0]])
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


def parts(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    return torch.cat([layer(part).sum(0, keepdim=True) for part in x.split(counts.tolist())])


def attend(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    """Draws no random numbers, as nothing is dropped."""
    x = F.scaled_dot_product_attention(layer(x)[None], x[None], x[None])[0]
    return parts(layer, x, counts)


FUNCTIONS: dict[str, tuple[Callable[..., Any], tuple[Tensor, ...], list[Any]]] = {
    "early exit": (early_exit, (X,), [True]),
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


@pytest.mark.parametrize("model", [Routed(True), Calls(early_exit)])
def test_values_that_are_not_there_are_refused(model: nn.Module) -> None:
    """The values may be those of the weights."""
    width = 8 if isinstance(model, Routed) else 4
    with pytest.raises(CaptureError, match=r"needs .*, and a trace has shapes only"):
        capture(model, torch.zeros(3, width, device="meta"))
    if isinstance(model, Routed):
        with pytest.raises(CaptureError, match=r"needs .*, and a trace has shapes only"):
            capture(model.to("meta"), torch.zeros(3, width))


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
    notices: list[str] = []
    inputs = (torch.zeros(2, 3, 6, 6), torch.zeros(2, dtype=torch.long))
    assert not capture_step(Convnet(), inputs, notify=notices.append).trace.held
    assert notices == []


def energy(layer: nn.Module, x: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(layer(x.requires_grad_()).sum(), x, create_graph=True)
    return force.square().mean()


def given(layer: nn.Module, x: Tensor) -> Tensor:
    (force,) = torch.autograd.grad(layer(x).square().sum(), x, create_graph=True)
    return force.square().mean()


@pytest.mark.parametrize(("function", "x"), [(energy, X.clone()), (given, X.clone().requires_grad_())])
def test_gradients_in_forward_keep_module_names(function: Callable[..., Any], x: Tensor) -> None:
    notices: list[str] = []
    graph = capture(Calls(function), x, notify=notices.append)
    assert notices == []
    assert "layer/mm" in graph.op_names or "layer/addmm" in graph.op_names
