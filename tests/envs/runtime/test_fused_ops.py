"""Fused ops of GPUs run on any device, dropout included."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from agent import place
from envs.runtime.device_program import find_function, function_name
from graphs.system.errors import InputError

aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_efficient_attention.default
BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def run(op: Any, *given: Any, **named: Any) -> Any:
    return find_function(function_name(op))(*given, **named)


def test_dropout_of_attention_draws_the_same_numbers_backward() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(6, dtype=torch.float64).expand(2, 3, 6, 6)
    with torch.no_grad():
        torch.manual_seed(1)
        shares = run(FORWARD, query, key, eye, bias, True, 0.5)[0]
        torch.manual_seed(1)
        out, sums, seed, on_gpu = run(FORWARD, query, key, value, bias, True, 0.5)
        after = torch.rand(())
        grad = torch.randn_like(out)
        settings = 0.5, [True] * 4
        found = run(BACKWARD, grad, query, key, value, bias, out, sums, seed, on_gpu, *settings)
        torch.manual_seed(1)
        torch.randint(2**62, ())
        assert torch.rand(()) == after, "only the seed is drawn from the device's random numbers"
    assert 0.2 < (shares == 0).double().mean() < 0.8
    expected = ((query @ key.mT / 2 + bias).softmax(-1) * (shares != 0) * 2) @ value
    torch.testing.assert_close(out, expected)
    of = torch.autograd.grad(expected, (query, key, value, bias), grad)
    torch.testing.assert_close(tuple(found), of)


@pytest.mark.parametrize("settings", [(), (0.0, True), (0.3,)])
def test_results_are_laid_out_as_torch_says(settings: tuple[Any, ...]) -> None:
    query, value = torch.randn(2, 3, 5, 4), torch.randn(2, 3, 5, 8)
    made = run(FORWARD, query, query, value, None, True, *settings)
    said = FORWARD(query.to("meta"), query.to("meta"), value.to("meta"), None, True, *settings)
    assert [(each.shape, each.stride(), each.dtype) for each in made] == [
        (each.shape, each.stride(), each.dtype) for each in said
    ]


def test_dropout_on_another_kind_of_device_is_one_line() -> None:
    x = torch.randn(1, 1, 4, 4)
    saved = x, x, x, None, x, x, torch.tensor(3), torch.tensor(1), 0.5, [True] * 4
    with pytest.raises(
        InputError, match="attention with dropout is on a processor and its gradient on a GPU"
    ):
        run(BACKWARD, x, *saved)


class Block(nn.Module):
    """Norms and attention whose values are wider than its keys."""

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p, self.layer = p, nn.Linear(8, 32)
        self.norm, self.other = nn.RMSNorm(8), nn.RMSNorm((4, 8), elementwise_affine=False)

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.layer(self.other(self.norm(x))).view(3, 4, 2, 16).mT.split([4, 4, 8], 2)
        mixed = F.scaled_dot_product_attention(query.mT, key.mT, value.mT, dropout_p=self.p)
        return mixed.square().mean()


@pytest.mark.parametrize("p", [0.0, 0.5])
def test_a_step_with_fused_ops_runs_on_processors(p: float) -> None:
    torch.manual_seed(0)
    module, x = Block(p), torch.randn(3, 4, 8)
    plan = place(module, x, cluster="4xv100", placer="random", optimizer="sgd", budget=3)
    assert {str(FORWARD)[:-8], "aten._fused_rms_norm_backward"} < set(plan.graph.op_types)
    with plan.compile(module, devices=["cpu"] * 4) as runner:
        losses = [float(runner.step(x)) for _ in range(2)]
        gradients = runner.gradients()
    if p:
        assert losses[0] != losses[1]
        assert all(gradient.isfinite().all() for gradient in gradients.values())
        return
    reference = module.double()
    loss = reference(x.double())
    loss.backward()
    assert losses[0] == pytest.approx(loss.item())
    updated = torch.optim.SGD(module.parameters())
    updated.step()
    assert losses[1] == pytest.approx(module(x.double()).item())
