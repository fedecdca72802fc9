"""Ops whose costs are a guess are named with the remedy, and formulas of the user's are used."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import flop_registry, register_flop_formula

from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError
from graphs.op_graph import OpGraph


@torch.library.custom_op("placewalk_test::attend", mutates_args=())
def attend(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    return q.clone()


@attend.register_fake
def _(q: Tensor, k: Tensor, scale: Tensor) -> Tensor:
    return torch.empty_like(q)


@torch.library.custom_op("placewalk_test::fill", mutates_args=("out",))
def fill(x: Tensor, out: Tensor, times: int = 2) -> None:
    out.copy_(times * x)


class Custom(nn.Module):
    """An op that makes a tensor, and one that changes one."""

    def forward(self, x: Tensor) -> Tensor:
        out = torch.zeros_like(x)
        torch.ops.placewalk_test.fill(attend(x, x, torch.ones(4096)), out, 3)
        return out


@pytest.fixture
def formulas() -> Iterator[None]:
    yield
    for op in (torch.ops.placewalk_test.attend, torch.ops.placewalk_test.fill):
        flop_registry.pop(op, None)


def captured(dtype: torch.dtype = torch.float32) -> tuple[OpGraph, list[str]]:
    lines: list[str] = []
    graph = capture(Custom(), torch.zeros(6, 8).to(dtype), training=False, notify=lines.append, name="m")
    return graph, lines


def flops(graph: OpGraph, kind: str) -> float:
    return float(graph.flops[graph.op_types.index(f"placewalk_test.{kind}")])


def test_guesses_are_named_with_the_remedy() -> None:
    _, lines = captured()
    assert lines == [
        "model 'm': the time of placewalk_test.attend, placewalk_test.fill is a guess (an operation per "
        "number, each tensor moved once); give its flops to torch.utils.flop_counter.register_flop_formula"
    ]


def test_formulas_of_the_user_are_used_also_for_ops_that_change_tensors(formulas: None) -> None:
    register_flop_formula(torch.ops.placewalk_test.attend)(lambda q, k, *_, **__: 10 * q[0] * k[1])
    register_flop_formula(torch.ops.placewalk_test.fill)(lambda x, out, times, **_: times * out[0])
    graph, lines = captured()
    assert (flops(graph, "attend"), flops(graph, "fill"), lines) == (10 * 6 * 8, 3 * 6, [])


def test_a_formula_that_fails_is_one_line(formulas: None) -> None:
    register_flop_formula(torch.ops.placewalk_test.attend)(lambda q, **_: q[9])
    with pytest.raises(CaptureError, match=r"^model 'm' cannot be captured: the formula for the flops of"):
        captured()


def test_scales_do_not_decide_the_dtype_of_a_custom_op() -> None:
    graph, _ = captured(torch.bfloat16)
    assert graph.dtypes[graph.op_types.index("placewalk_test.fill")] == "bf16"


def test_factorizations_are_guesses() -> None:
    class Solve(nn.Module):
        def forward(self, a: Tensor) -> Tensor:
            return torch.linalg.vector_norm(torch.linalg.solve(a, a))

    lines: list[str] = []
    capture(Solve(), torch.eye(4), training=False, notify=lines.append)
    assert len(lines) == 1
    assert "the time of aten._linalg_solve_ex is a guess" in lines[0]
