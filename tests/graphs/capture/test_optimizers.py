"""Optimizer updates and their state, by hand and against torch's optimizers; sparse gradients."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from graphs.capture.capture import CaptureError, capture, capture_step
from graphs.optimizers import NAMED, UpdateRule
from graphs.step_settings import OPTIMIZER_NAMES, OPTIMIZERS, Gpu
from tests.graphs.capture.capture_cases import Once, op

ROWS, WIDTH = 1000, 8
SHAPES = ((6, 4), (6,), (5, 3, 2, 2), (70_001,), (512, 700), (3, 272, 600), (300, 257, 3, 3))


class EightBit(torch.optim.Optimizer):
    """Keeps a byte of each element and a scale of each block of 256; small parameters in 32 bits."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (each for group in self.param_groups for each in group["params"]):
            if parameter.numel() < 4096:
                self.state[parameter] = {"momentum": torch.zeros_like(parameter, dtype=torch.float32)}
                continue
            blocks = -(-parameter.numel() // 256)
            codes = torch.zeros(parameter.shape, dtype=torch.uint8)
            self.state[parameter] = {"momentum": [codes, torch.zeros(blocks)], "step": 1}


class Factored(EightBit):
    """Keeps a value of each extent, of each row and of the whole."""

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for parameter in (each for group in self.param_groups for each in group["params"]):
            extents = {f"extent{at}": torch.zeros(extent) for at, extent in enumerate(parameter.shape)}
            self.state[parameter] = {
                "rows": parameter.sum(-1, keepdim=True),
                "whole": torch.zeros(5),
                **extents,
            }


def rule_of(kind: Any, **options: Any) -> UpdateRule:
    return UpdateRule(kind, options)


@pytest.mark.parametrize(
    "rule",
    [
        *map(rule_of, (torch.optim.Adam, torch.optim.SGD, torch.optim.AdamW, torch.optim.Adafactor)),
        *map(rule_of, (torch.optim.RMSprop, torch.optim.Adagrad, EightBit, Factored)),
        rule_of(torch.optim.Adam, amsgrad=True, capturable=True),
        rule_of(torch.optim.SGD, momentum=0.9, foreach=True),
    ],
    ids=lambda rule: f"{rule.name} {rule.defaults}",
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_the_state_is_what_the_optimizer_keeps_of_a_parameter(rule: UpdateRule, dtype: torch.dtype) -> None:
    for shape in SHAPES:
        parameter = nn.Parameter(torch.ones(shape, dtype=dtype))
        parameter.grad = torch.ones_like(parameter)
        optimizer = rule.kind(
            [parameter],
            **(rule.defaults | {"capturable": False} if "capturable" in rule.defaults else rule.defaults),
        )
        optimizer.step()
        kept = [value for value in tree_leaves(dict(optimizer.state[parameter])) if isinstance(value, Tensor)]
        held = sum(value.nbytes for value in kept if value.dim() > 0)
        assert rule.kept_bytes(shape, dtype) == pytest.approx(held, rel=3e-3), shape


@pytest.mark.parametrize(
    ("name", "states", "flops", "moved"),
    [
        ("sgd", 0, 2 * 24, 3 * 96),
        ("adam", 2 * 96, 10 * 24, 7 * 96),
        ("adamw", 2 * 96, 12 * 24, 7 * 96),
        ("adafactor", 4 * (4 + 6), 15 * 24, 17 * 96 + 2 * 40),
    ],
)
def test_an_update_of_a_matrix_is_as_counted_by_hand(name: str, states: int, flops: int, moved: int) -> None:
    graph = capture(nn.Linear(6, 4, bias=False), torch.zeros(2, 6), optimizer=name)
    update = op(graph, f"{name}/weight")
    assert graph.op_types[update] == f"optim.{name}"
    assert (graph.flops[update], graph.bytes_moved[update]) == (flops, moved)
    assert graph.resident_bytes[op(graph, "weight")] == 2 * 96 + states


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_a_sparse_gradient_is_its_rows_and_its_update_touches_those_alone(name: str) -> None:
    tokens = torch.zeros(5, dtype=torch.long)
    dense = capture(nn.Embedding(ROWS, WIDTH), tokens, optimizer=name)
    sparse = capture(nn.Embedding(ROWS, WIDTH, sparse=True), tokens, optimizer=name)
    table, rows = 4 * ROWS * WIDTH, 4 * 5 * WIDTH
    saved = dense.resident_bytes.sum() - sparse.resident_bytes.sum()
    assert saved == table - (rows + 8 * 5)
    for amounts in ("flops", "bytes_moved"):
        whole, part = (getattr(graph, amounts)[op(graph, f"{name}/weight")] for graph in (dense, sparse))
        assert part == pytest.approx(whole * 5 / ROWS)


def test_wrapping_rows_as_a_sparse_gradient_costs_nothing() -> None:
    graph = capture(nn.Embedding(ROWS, WIDTH, sparse=True), torch.zeros(5, dtype=torch.long))
    wrap = graph.op_types.index("aten._sparse_coo_tensor_with_dims_and_tensors")
    assert (graph.flops[wrap], graph.bytes_moved[wrap]) == (0, 0)
    assert graph.tensor_bytes[graph.outputs.row(wrap)].tolist() == [4 * 5 * WIDTH + 8 * 5]


def two_look_ups(table: Tensor, first: Tensor, second: Tensor) -> Tensor:
    return F.embedding(first, table, sparse=True).sum() + F.embedding(second, table, sparse=True).sum()


def test_the_sum_of_sparse_gradients_holds_the_rows_of_both() -> None:
    tokens = torch.zeros(5, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    graph = capture(Once(two_look_ups, (ROWS, WIDTH)), tokens, optimizer="sgd")
    (total,) = graph.predecessors.row(op(graph, "sgd/held.0"))
    assert graph.op_types[total] == "aten.add"
    assert graph.flops[total] == 12 * WIDTH
    assert graph.tensor_bytes[graph.outputs.row(total)].tolist() == [12 * (4 * WIDTH + 8)]


@pytest.mark.parametrize(
    ("optimizer", "kept"),
    [
        ("rmsprop", 4 * 272),
        ("sgd:momentum=0.9", 4 * 272),
        (torch.optim.SGD, 0),
        (partial(torch.optim.Adam, amsgrad=True), 12 * 272),
        (EightBit, 4 * 272),
        ("muon", 4 * 256 + 8 * 16),
        (lambda m: torch.optim.SGD([{"params": [m.weight], "momentum": 0.5}, {"params": [m.bias]}]), 4 * 256),
        (lambda m: [torch.optim.Muon([m.weight]), torch.optim.AdamW([m.bias])], 4 * 256 + 8 * 16),
        (lambda m: torch.optim.AdamW([m.bias]), 8 * 16),
    ],
)
def test_an_optimizer_is_a_name_a_class_a_partial_or_instances(optimizer: Any, kept: int) -> None:
    module = nn.Linear(16, 16)
    made = optimizer(module) if type(optimizer) is type(lambda: 0) else optimizer
    graph = capture(module, torch.zeros(2, 16), optimizer=made, notify=lambda _: None)
    assert graph.resident_bytes.sum() == 8 * 272 + kept


def test_frozen_parameters_have_no_update_and_groups_name_their_ops() -> None:
    module = nn.Linear(16, 16)
    optimizers = [torch.optim.Muon([module.weight])]
    step = capture_step(module, torch.zeros(2, 16), optimizer=optimizers, notify=lambda _: None)
    assert step.op_of_update.keys() == {"weight"}
    update = op(step.graph, "muon/weight")
    assert step.graph.dtypes[update] == "tf32"
    assert step.graph.flops[update] > 5 * 6 * 16**3


@pytest.mark.parametrize(
    ("settings", "per_element", "moved"),
    [
        ({}, 8, 14),
        ({"master_weights": "fp32"}, 16, 2 + 4 * 6 + 2),
        ({"master_weights": "fp32", "gradient_dtype": torch.float32}, 18, 4 * 7 + 2),
        ({"gradient_dtype": "fp32", "optimizer": "sgd"}, 6, 2 * 2 + 4),
    ],
)
def test_master_weights_and_cast_gradients_are_resident_and_moved(
    settings: dict[str, Any], per_element: int, moved: int
) -> None:
    module, inputs = nn.Linear(16, 16).bfloat16(), torch.zeros(2, 16, dtype=torch.bfloat16)
    graph = capture(module, inputs, notify=lambda _: None, **settings)
    assert graph.resident_bytes.sum() == per_element * 272
    updates = [phase == "optimizer" for phase in graph.phases]
    assert graph.bytes_moved[updates].sum() == moved * 272
    gradients = graph.tensor_owner != graph.tensor_producer
    assert graph.tensor_bytes[gradients & (graph.tensor_owner >= 0)].sum() == 272 * (
        4 if "gradient_dtype" in settings else 2
    )


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"optimizer": "foo"}, "unknown optimizer 'foo'; use one of "),
        ({"optimizer": "lbfgs"}, "unknown optimizer 'lbfgs'"),
        ({"optimizer": "sgd:momentum"}, "write options as sgd:momentum=0.9"),
        ({"optimizer": "sgd:nose=1"}, "does not step a parameter of torch.float32"),
        ({"optimizer": 3}, "optimizer is a int; use a name, a class"),
        ({"optimizer": []}, "holds no parameter of the module"),
        ({"optimizer": torch.optim.SGD([torch.zeros(2)])}, "holds no parameter of the module"),
        ({"master_weights": "fp32"}, "no trained weight is narrower"),
        ({"gradient_dtype": "fp32", "gpu": Gpu(8.0, "bf16")}, "precision 'bf16' narrows all types"),
        ({"gradient_dtype": "fp31"}, "gradient_dtype 'fp31'; use fp32, bf16, fp16 or None for each"),
    ],
)
def test_what_cannot_be_planned_is_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(CaptureError, match=line):
        capture(nn.Linear(3, 2), torch.zeros(2, 3), **settings)


def test_names_are_those_of_torch() -> None:
    kinds = (each for each in vars(torch.optim).values() if isinstance(each, type))
    names = {kind.__name__.lower() for kind in kinds if issubclass(kind, torch.optim.Optimizer)}
    assert NAMED.keys() == names - {"optimizer", "lbfgs"} == {*OPTIMIZER_NAMES}
