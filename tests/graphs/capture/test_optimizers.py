"""Optimizer updates and their state, by hand and against torch's optimizers; sparse gradients."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from graphs.capture.capture import capture
from graphs.step_settings import OPTIMIZERS
from tests.graphs.capture.capture_cases import op

ROWS, WIDTH = 1000, 8


CLASSES = {
    "adam": torch.optim.Adam,
    "sgd": torch.optim.SGD,
    "adamw": torch.optim.AdamW,
    "adafactor": torch.optim.Adafactor,
}


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_the_state_is_what_torch_keeps_of_a_parameter(name: str) -> None:
    module = nn.Linear(6, 4)
    module.kernel = nn.Parameter(torch.zeros(5, 3, 2, 2))
    optimizer = CLASSES[name](module.parameters())
    for parameter in module.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    for parameter in module.parameters():
        kept = [value for value in optimizer.state[parameter].values() if isinstance(value, Tensor)]
        held = sum(value.nbytes for value in kept if value.dim() > 0)
        assert OPTIMIZERS[name].state_bytes(parameter) == held


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


class TwoLookUps(nn.Module):
    """Two look-ups in one table with a sparse gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(ROWS, WIDTH, sparse=True)

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return self.table(first).sum() + self.table(second).sum()


def test_the_sum_of_sparse_gradients_holds_the_rows_of_both() -> None:
    tokens = torch.zeros(5, dtype=torch.long), torch.zeros(7, dtype=torch.long)
    graph = capture(TwoLookUps(), tokens, optimizer="sgd")
    (total,) = graph.predecessors.row(op(graph, "sgd/table.weight"))
    assert graph.op_types[total] == "aten.add"
    assert graph.flops[total] == 12 * WIDTH
    assert graph.tensor_bytes[graph.outputs.row(total)].tolist() == [12 * (4 * WIDTH + 8)]
