"""Torch's joint trace, the plain one to fall back on, and why a model cannot be captured: in one line."""

from __future__ import annotations

import importlib.util
import re
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from graphs.capture import tracing
from graphs.capture.capture import CaptureError, capture
from tests.graphs.capture.capture_cases import CONVNET_INPUTS, Calls, Convnet, Mlp, TiedLm, fingerprint, heard


class FakeOnly(Mlp):
    """Branches on values of any tensor that is not plainly fake; the joint trace wraps them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if isinstance(x, FakeTensor) or x.sum() > 0 else -x)


def test_a_fallback_to_the_plain_trace_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    graph, (notice,) = heard(FakeOnly(), torch.zeros(3, 4), loss=torch.mean)
    # The joint trace of a model without such a branch says nothing.
    assert graph.flops.sum() == capture(Mlp(), torch.zeros(3, 4), loss=torch.mean).flops.sum()
    assert "addmm" in graph.op_names
    assert re.fullmatch(
        r"model 'FakeOnly': module names are lost, since torch's joint trace failed with .*"
        r"test_tracing\.py:\d+: needs a tensor's value .*; placements stay valid",
        notice,
    )
    assert capsys.readouterr() == ("", "")
    capture(FakeOnly(), torch.zeros(3, 4), loss=torch.mean)
    assert capsys.readouterr() == ("", f"{notice}\n")


def test_a_model_that_checks_values_unless_compiled_keeps_its_module_names() -> None:
    def checked(layer: nn.Module, x: Tensor) -> Tensor:
        if not torch.compiler.is_compiling() and x.isnan().any():
            raise ValueError("x has NaNs")
        return layer(x)

    graph = capture(Calls(checked), torch.zeros(2, 4), loss=torch.mean, notify=pytest.fail)
    unchecked = capture(Calls(lambda layer, x: layer(x)), torch.zeros(2, 4), loss=torch.mean, name=graph.name)
    assert fingerprint(graph) == fingerprint(unchecked)
    assert not torch.compiler.is_compiling()


def doubled(layer: nn.Module, x: Tensor) -> Tensor:
    return 2 * layer(x)


@pytest.mark.parametrize("compiled", ["function", "layer", "model"])
def test_what_is_compiled_is_traced_as_if_it_was_not(compiled: str) -> None:
    model: Any = Calls(torch.compile(doubled, backend="eager") if compiled == "function" else doubled)
    if compiled == "layer":
        model.layer = torch.compile(model.layer, backend="eager")
    if compiled == "model":
        model = torch.compile(model, backend="eager")
    graph = capture(model, torch.zeros(2, 4), loss=torch.mean, notify=pytest.fail)
    plain = capture(Calls(doubled), torch.zeros(2, 4), loss=torch.mean)
    assert [name.replace("._orig_mod", "") for name in graph.op_names] == [*plain.op_names]


def test_the_private_trace_is_tested_on_this_torch() -> None:
    assert torch.__version__.startswith(tracing.TESTED_TORCH)


@pytest.mark.parametrize(
    ("module", "inputs"),
    [
        (Mlp(), (torch.zeros(3, 4),)),
        (Convnet(), CONVNET_INPUTS),
        (TiedLm(), (torch.zeros(6).long(),)),
        (Calls(lambda layer, x: torch.polar(layer(x).abs(), layer(x)).abs()), (torch.zeros(2, 4),)),
    ],
)
@pytest.mark.parametrize("training", [True, False])
def test_the_plain_trace_agrees_with_the_joint_one(
    module: nn.Module, inputs: tuple[Tensor, ...], training: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    joint = capture(module, inputs, training=training)
    monkeypatch.setattr(tracing, "trace_joint", lambda step: 1 / 0)
    plain = capture(module, inputs, training=training)
    assert plain.flops.sum() == joint.flops.sum()
    assert plain.resident_bytes.sum() == joint.resident_bytes.sum()
    assert plain.phases == joint.phases


def grad(loss: Tensor, x: Tensor) -> Tensor:
    (found,) = torch.autograd.grad(loss, x, create_graph=True)
    return found


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (
            lambda layer, x: layer(x.to("cuda:1")),
            "cuda:1 and cpu.*; forward puts tensors on devices of its own",
        ),
        (lambda layer, x: layer(x) * x.cpu().numpy().max(), "numpy.* forward reads a tensor's memory"),
        (
            lambda layer, x: grad(layer(x).sum(), x),
            "not .* require grad; forward takes a gradient by what has none",
        ),
        (lambda layer, x: layer(x.T), "must have same reduction dim"),
        (lambda layer, x: x.long(), "no float tensor"),
        (lambda layer, x: {}["key"], "KeyError: 'key'"),
    ],
)
def test_what_cannot_be_captured_says_why_in_one_line(
    function: Callable[..., Any], reason: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Calls(function), torch.zeros(2, 4, device="meta"), name="mine")
    message = str(caught.value)
    assert message.startswith("model 'mine' cannot be captured: ")
    assert re.search(reason, message)
    assert "\n" not in message
    assert capfd.readouterr() == ("", "")


def test_the_traceback_of_torch_is_in_a_file_that_the_message_names() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Mlp(), torch.zeros(2, 3))
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__
    shown = "".join(traceback.format_exception(caught.value))
    assert len(shown.splitlines()) < 12
    (file,) = re.findall(r" \(traceback: (.*placewalk-.*\.log)\)$", str(caught.value))
    logged = Path(file).read_text()
    assert "aot_export_joint_with_descriptors" in logged
    assert "same reduction dim" in logged
    Path(file).unlink()


def test_a_refusal_without_a_cause_has_no_file() -> None:
    with pytest.raises(CaptureError) as caught:
        capture(Calls(lambda layer, x: x.long()), torch.zeros(2, 4))
    assert "traceback" not in str(caught.value)
    assert caught.value.__suppress_context__


def test_what_is_sharded_is_placed_before() -> None:
    sharded = type("FSDPModule", (), {})
    module = Mlp()
    module.fc1.__class__ = type("FSDPLinear", (sharded, nn.Linear), {})
    with pytest.raises(CaptureError, match=r"are sharded .*; place it before it is sharded$"):
        capture(module, torch.zeros(2, 4))


def test_what_is_no_module_is_not_captured() -> None:
    with pytest.raises(CaptureError, match=r"^model 'Tensor' cannot be captured: it is no torch\.nn\.Module"):
        capture(torch.zeros(2, 4), Mlp())  # type: ignore[arg-type]


@pytest.mark.filterwarnings("ignore:Lazy modules")
def test_a_module_that_cannot_be_copied_says_so() -> None:
    with pytest.raises(CaptureError, match=r"model 'LazyLinear' cannot be captured: a copy .* uninitialized"):
        capture(nn.LazyLinear(3), torch.zeros(2, 4))


FAILING = {
    "float(x.sum())": "needs a tensor's value (`.item()`, `if tensor`)",
    "x[x > 0]": "needs the values that aten.nonzero.default yields",
    "x.nonzero()": "needs the values that aten.nonzero.default yields",
    "bool(x.sum() > 0)": "needs a tensor's value (`.item()`, `if tensor`)",
    "x @ x": "RuntimeError: a and b must have same reduction dim",
}


def load_model(file: Path, expression: str) -> nn.Module:
    """A model in a file of its own that fails in line 9."""
    lines = [
        "from torch import nn",
        "class Net(nn.Module):",
        "    def __init__(self):",
        "        super().__init__()",
        "        self.layer = nn.Linear(4, 4)",
        "    def forward(self, x):",
        "        return self.layer(x) + self.helper(x)",
        "    def helper(self, x):",
        f"        return {expression}",
    ]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("models", file)
    assert spec is not None
    assert spec.loader is not None
    models = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(models)
    module: nn.Module = models.Net()
    return module


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("expression", FAILING)
def test_what_fails_in_a_model_is_named_with_its_line(
    expression: str, training: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = load_model(tmp_path / "sub" / "models.py", expression)
    reason = re.escape(f"models.py:9: {FAILING[expression]}")
    with pytest.raises(CaptureError, match=re.escape(f"captured: {tmp_path}/sub/") + reason):
        capture(module, torch.zeros(2, 4, device="meta"), training=training)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CaptureError, match="^model 'Net' cannot be captured: sub/" + reason):
        capture(module, torch.zeros(2, 4, device="meta"), training=training)


def test_an_error_in_an_installed_model_is_named_with_the_line_of_the_package_or_of_its_user(
    tmp_path: Path,
) -> None:
    installed = load_model(tmp_path / "site-packages" / "zoo" / "net.py", "float(x.sum())")
    with pytest.raises(CaptureError, match=r"captured: zoo/net\.py:9: needs a tensor's value"):
        capture(installed, torch.zeros(2, 4, device="meta"))
    user = load_model(tmp_path / "mine.py", "self.net(x)")
    user.net = installed
    with pytest.raises(CaptureError, match=r"/mine\.py:9: needs a tensor's value"):
        capture(user, torch.zeros(2, 4, device="meta"))
