"""What runs on the devices of a placement equals the plain step: losses, gradients, parameters."""

from __future__ import annotations

import pickle
import re
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrizations import orthogonal, spectral_norm

from agent import place
from envs.runtime.backends.processes import DeviceProcesses
from envs.runtime.device_program import ExecutionError, find_function, function_name
from envs.runtime.runner import StepRunner
from envs.runtime.torch_split import SplitStep
from envs.runtime.user_ops import import_ops, modules_with_ops
from graphs.capture.capture import capture_step
from graphs.granularity import GRANULARITIES, with_granularity
from graphs.system.errors import InputError
from tests.envs.runtime.small_models import (
    MODELS,
    Scaling,
    assert_trains_as_plain,
    make,
    plain_steps,
    random_devices,
)
from tests.graphs.capture.capture_cases import Calls
from tests.graphs.capture.test_recomputed_layers import Net as Checkpointed
from tests.graphs.capture.test_recomputed_layers import Run, nested, plain, reentrant

N_DEVICES, N_STEPS = 3, 2


def parts(layer: nn.Module, x: Tensor, counts: Tensor) -> Tensor:
    means = [layer(part).mean() for part in x.split(counts.tolist())]
    return torch.stack(means).sum() + layer(x)[x[:, 0] > 2].square().mean()


@pytest.fixture(scope="module")
def processes() -> Iterator[DeviceProcesses]:
    with DeviceProcesses(N_DEVICES, timeout_s=120) as found:
        yield found


@pytest.mark.parametrize("family", MODELS)
def test_a_placed_step_equals_the_plain_one(family: str, processes: DeviceProcesses) -> None:
    module, inputs = make(family)
    captured = capture_step(module, inputs, optimizer="sgd")
    for seed, granularity in enumerate(GRANULARITIES):
        graph = with_granularity(captured.graph, granularity)
        device_of = random_devices(graph, N_DEVICES, seed)
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
        assert_trains_as_plain(runner, module, inputs, N_STEPS, lr=0.1)


def test_clones_whose_keywords_change_nothing_run(processes: DeviceProcesses) -> None:
    torch.manual_seed(0)
    module = nn.Sequential(spectral_norm(nn.Linear(4, 4)), orthogonal(nn.Linear(4, 4))).double()
    x = torch.randn(3, 4, dtype=torch.float64)
    captured = capture_step(module, x, optimizer="sgd", notify=lambda _: None)
    device_of = random_devices(captured.graph, N_DEVICES, 0)
    runner = StepRunner(captured, device_of, module, processes, options={"lr": 0.1})
    assert_trains_as_plain(runner, module, (x,), N_STEPS, lr=0.1)


def test_values_that_a_step_was_captured_with_are_checked_in_each_step() -> None:
    torch.manual_seed(0)
    module, x = Calls(parts).double(), torch.arange(12.0, dtype=torch.float64).reshape(3, 4)
    inputs = x, torch.tensor([2, 1])
    captured = capture_step(module, inputs, optimizer="sgd", notify=lambda _: None)
    device_of = random_devices(captured.graph, 2, 0)
    with DeviceProcesses(2, timeout_s=120) as processes:
        runner = StepRunner(captured, device_of, module, processes, options={"lr": 1e-4})
        assert_trains_as_plain(runner, module, inputs, N_STEPS, lr=1e-4)
        message = "device [01]: .*op '.*' yields 1; the step holds for .* which yield 2; capture it again"
        with pytest.raises(ExecutionError, match=message):
            runner.step(x, torch.tensor([1, 2]))


def test_memory_formats_are_found_by_processes_that_do_not_run_the_script(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Pickle takes them from the first module that has `torch`, which may be the script."""
    script = types.ModuleType("__mp_main__")
    script.torch = torch  # type: ignore[attr-defined]
    modules = {name: module for name, module in sys.modules.items() if name != "__mp_main__"}
    monkeypatch.setattr(sys, "modules", {"__mp_main__": script, **modules})
    content = pickle.dumps(torch.channels_last)
    assert b"__mp_main__" not in content
    assert pickle.loads(content) is torch.channels_last


X = torch.linspace(-1, 1, 64).view(16, 4).double()


@pytest.mark.parametrize("run", [plain, reentrant, nested])
def test_a_step_trains_as_the_module_in_less_memory(run: Run) -> None:
    module = Checkpointed(run).double()
    plan = place(module, X, cluster="2xk80", placer="round-robin", optimizer="sgd")
    again = {plan.device_of[name] for name in plan.graph.op_names if name.startswith("recompute/")}
    assert len(again) == 2
    with plan.compile(module, devices=["cpu", "cpu"], timeout_s=60, lr=0.1) as runner:
        assert_trains_as_plain(runner, module, (X,), 3, lr=0.1)


def test_activations_of_layers_are_not_kept() -> None:
    peaks = [
        place(
            Checkpointed(run).double(), X.repeat(64, 1), cluster="2xk80", placer="single"
        ).step_time.peak_bytes.max()
        for run in (lambda layer, x: layer(x), plain)
    ]
    assert peaks[0] - peaks[1] == 1024 * 6 * 8  # what the first layer's tanh makes


def test_gradients_of_dropout_are_of_the_mask_of_the_forward_pass() -> None:
    """The loss is a product of weights, so each weight times its gradient sums up to twice the loss."""
    module = Checkpointed(lambda layer, x: -x + plain(layer, x), nn.Dropout(0.4)).double()
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
    module = Checkpointed(reentrant).double()
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


aten = torch.ops.aten
FORWARD = aten._scaled_dot_product_efficient_attention.default
BACKWARD = aten._scaled_dot_product_efficient_attention_backward.default


def call(op: Any, *given: Any, **named: Any) -> Any:
    return find_function(function_name(op))(*given, **named)


def test_dropout_of_attention_draws_the_same_numbers_backward() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(2, 3, 6, 4, dtype=torch.float64, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 3, 6, 6, dtype=torch.float64, requires_grad=True)
    eye = torch.eye(6, dtype=torch.float64).expand(2, 3, 6, 6)
    with torch.no_grad():
        torch.manual_seed(1)
        shares = call(FORWARD, query, key, eye, bias, True, 0.5)[0]
        torch.manual_seed(1)
        out, sums, seed, on_gpu = call(FORWARD, query, key, value, bias, True, 0.5)
        after = torch.rand(())
        grad = torch.randn_like(out)
        settings = 0.5, [True] * 4
        found = call(BACKWARD, grad, query, key, value, bias, out, sums, seed, on_gpu, *settings)
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
    made = call(FORWARD, query, query, value, None, True, *settings)
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
        call(BACKWARD, x, *saved)


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
    assert losses == pytest.approx(plain_steps(module.double(), (x.double(),), 2, "sgd")[0])


def test_a_step_with_custom_ops_equals_the_plain_step() -> None:
    module, inputs = Scaling().double(), (torch.arange(24.0).view(4, 6).double() / 24,)
    plan = place(module, inputs, cluster="2xk80", placer="round-robin", optimizer="sgd")
    devices = {plan.device_of[name] for name in plan.graph.op_names if "scaled" in name}
    assert len(devices) == 2
    with plan.compile(module, devices=["cpu", "cpu"], timeout_s=60, lr=0.1) as runner:
        assert_trains_as_plain(runner, module, inputs, 1, lr=0.1)


def test_modules_that_define_ops_come_before_those_of_the_model() -> None:
    names = ["getitem", "aten.mm.default", "placewalk_tests.scaled.default"]
    assert modules_with_ops(names, Scaling()) == (
        "tests.envs.runtime.custom_ops",
        "tests.envs.runtime.small_models",
    )
    assert modules_with_ops(["aten.mm.default"], nn.Linear(1, 1)) == ()


def test_an_op_of_the_script_that_runs_is_refused_in_one_line() -> None:
    names = ["aten.mm.default", "placewalk_tests.missing.default"]
    with pytest.raises(
        ExecutionError, match=r"^op 'placewalk_tests.missing.default' is not known to the processes"
    ):
        import_ops(names, modules_with_ops(names, Scaling()))
    import_ops(["aten.mm.default", "placewalk_tests.scaled.default"], ["not_there"])


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("import not_there", "ops_that_fail.py:1: ModuleNotFoundError: No module named 'not_there'"),
        ("raise SystemExit(3)", "ops_that_fail.py:1: it calls sys.exit(3); leave that out"),
    ],
)
def test_a_module_that_cannot_be_imported_is_one_line(
    code: str, reason: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ops_that_fail.py").write_text(code)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    said = f"cannot import 'ops_that_fail', which may define op 'placewalk_tests.missing.default': {reason}"
    with pytest.raises(ExecutionError, match=f"^{re.escape(said)}$"):
        import_ops(["placewalk_tests.missing.default"], ["ops_that_fail"])
