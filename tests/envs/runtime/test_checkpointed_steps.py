"""Placed steps run layers under `torch.utils.checkpoint` again, and train as the module does by itself."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from agent import place
from envs.runtime.torch_split import SplitStep
from tests.envs.runtime.small_models import assert_trains_as_plain
from tests.graphs.capture.test_recomputed_layers import Net, Run, nested, plain, reentrant

OPTIONS = {"lr": 0.1}
X = torch.linspace(-1, 1, 64).view(16, 4).double()


@pytest.mark.parametrize("run", [plain, reentrant, nested])
def test_a_step_trains_as_the_module_in_less_memory(run: Run) -> None:
    module = Net(run).double()
    plan = place(module, X, cluster="2xk80", placer="round-robin", optimizer="sgd")
    again = {plan.device_of[name] for name in plan.graph.op_names if name.startswith("recompute/")}
    assert len(again) == 2
    with plan.compile(module, devices=["cpu", "cpu"], timeout_s=60, **OPTIONS) as runner:
        assert_trains_as_plain(runner, module, (X,), 3, **OPTIONS)


def test_activations_of_layers_are_not_kept() -> None:
    peaks = [
        place(Net(run).double(), X.repeat(64, 1), cluster="2xk80", placer="single").step_time.peak_bytes.max()
        for run in (lambda layer, x: layer(x), plain)
    ]
    assert peaks[0] - peaks[1] == 1024 * 6 * 8  # what the first layer's tanh makes


def test_gradients_of_dropout_are_of_the_mask_of_the_forward_pass() -> None:
    """The loss is a product of weights, so each weight times its gradient sums up to twice the loss."""
    module = Net(lambda layer, x: -x + plain(layer, x), nn.Dropout(0.4)).double()
    for layer in (module.first, *module.layers.children()):
        for part in layer.modules():
            if isinstance(part, nn.Linear):
                part.bias = None
    for layer in module.layers:
        layer[2] = nn.ReLU()
    plan = place(module, X, cluster="2xk80", placer="round-robin", optimizer="sgd")
    with plan.compile(module, devices=["cpu", "cpu"], timeout_s=60, lr=0.0) as runner:
        loss, gradients = runner.step(X), runner.gradients()
    sums = [float((gradients[path] * weight.detach()).sum()) for path, weight in module.named_parameters()]
    assert sums == pytest.approx([2 * float(loss)] * len(sums))


def test_stages_have_the_gradients_of_reentrant_layers_and_say_that_they_run_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    module = Net(reentrant).double()
    plan = place(module, X, cluster="4xv100:2", pipeline="gpipe", split=4, placer="equal-time")
    plan.pipeline_stages(module)
    assert "stages run layers under torch.utils.checkpoint once" in capsys.readouterr().err
    split = SplitStep(plan.captured, module, ())
    part = split.part(0, torch.device("cpu"), recomputes=False)
    (loss,) = part.module(**dict.fromkeys(split.inputs, X[:4]))
    loss.backward()
    gradients = [weight.grad.clone() for weight in module.parameters()]
    module.zero_grad()
    module(X[:4]).backward()
    torch.testing.assert_close(gradients, [weight.grad for weight in module.parameters()])
