"""Torch's joint trace, the plain one to fall back on, and what both drop."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor

from graphs.capture import tracing
from graphs.capture.capture import capture
from tests.graphs.capture.capture_cases import CONVNET_INPUTS, Calls, Convnet, Mlp, TiedLm, fingerprint


class FakeOnly(Mlp):
    """Branches on values of any tensor that is not plainly fake; the joint trace wraps them."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x if isinstance(x, FakeTensor) or x.sum() > 0 else -x)


def test_a_fallback_to_the_plain_trace_says_so_in_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    notices: list[str] = []
    graph = capture(FakeOnly(), torch.zeros(3, 4), loss=torch.mean, notify=notices.append)
    # The joint trace of a model without such a branch says nothing.
    assert graph.flops.sum() == capture(Mlp(), torch.zeros(3, 4), loss=torch.mean).flops.sum()
    assert "addmm" in graph.op_names
    (notice,) = notices
    assert re.fullmatch(
        r"model 'FakeOnly': module names are lost, since torch's joint trace failed with .*"
        r"test_traces\.py:\d+: needs a tensor's value .*; placements stay valid",
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

    notices: list[str] = []
    graph = capture(Calls(checked), torch.zeros(2, 4), loss=torch.mean, notify=notices.append)
    unchecked = capture(Calls(lambda layer, x: layer(x)), torch.zeros(2, 4), loss=torch.mean, name=graph.name)
    assert fingerprint(graph) == fingerprint(unchecked)
    assert notices == []
    assert not torch.compiler.is_compiling()


def doubled(layer: nn.Module, x: Tensor) -> Tensor:
    return 2 * layer(x)


@pytest.mark.parametrize("of_layer", [False, True])
def test_what_a_model_compiles_itself_is_traced_as_if_it_did_not(of_layer: bool) -> None:
    model = Calls(doubled if of_layer else torch.compile(doubled, backend="eager"))
    if of_layer:
        model.layer = torch.compile(model.layer, backend="eager")
    notices: list[str] = []
    graph = capture(model, torch.zeros(2, 4), loss=torch.mean, notify=notices.append)
    plain = capture(Calls(doubled), torch.zeros(2, 4), loss=torch.mean)
    assert graph.op_types == plain.op_types
    assert notices == []


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


def test_another_process_captures_the_same_graph() -> None:
    code = (
        "from graphs.capture.capture import capture\n"
        "from tests.graphs.capture.capture_cases import CONVNET_INPUTS, Convnet, fingerprint\n"
        "print(fingerprint(capture(Convnet(), CONVNET_INPUTS)))"
    )
    other = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert other.stdout.strip() == fingerprint(capture(Convnet(), CONVNET_INPUTS))
