"""The loss that a captured step trains is the model's own."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import GPT2Config, GPT2LMHeadModel

from agent import place
from graphs.capture.capture import capture, capture_step
from graphs.capture.loss import CaptureError, find_loss


class Returns(nn.Module):
    """Returns what a function makes of its output and its loss."""

    def __init__(self, make: Callable[[Tensor, Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.make = nn.Linear(4, 3), make

    def forward(self, x: Tensor) -> Any:
        y = self.layer(x)
        return self.make(y, y.square().mean())


@dataclass
class Outputs:
    """What a model returns, as a dataclass."""

    logits: Tensor
    hidden: Tensor


@dataclass
class Inputs:
    """What a model takes, as a dataclass."""

    x: Tensor


class OfDataclass(nn.Module):
    """Takes and returns dataclasses."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, inputs: Inputs) -> Outputs:
        logits = self.layer(inputs.x)
        return Outputs(logits, 3 * logits)


def first_step(module: nn.Module, inputs: Any, **options: Any) -> float:
    plan = place(module, inputs, cluster="2xk80", placer="heft", **options)
    with plan.compile(module, devices=["cpu", "cpu"], lr=0.0) as runner:
        return float(runner.step(**inputs) if isinstance(inputs, dict) else runner.step(inputs))


def test_gpt2_with_labels_trains_its_own_loss() -> None:
    sizes = {"n_layer": 1, "n_embd": 32, "n_head": 2, "vocab_size": 100, "n_positions": 64}
    dropout = dict.fromkeys(("resid_pdrop", "embd_pdrop", "attn_pdrop"), 0.0)
    module = GPT2LMHeadModel(GPT2Config(**sizes, **dropout, bos_token_id=0, eos_token_id=0))
    ids = torch.randint(100, (2, 16))
    batch = {"input_ids": ids, "labels": ids}
    assert first_step(module, batch) == pytest.approx(float(module(**batch).loss.detach()), abs=1e-6)


@pytest.mark.parametrize(
    ("make", "loss"),
    [
        (lambda y, loss: {"logits": y, "loss": loss}, None),
        (lambda y, loss: (y, loss), None),
        (lambda y, loss: (loss, y, y.sum()), None),
        (lambda y, loss: {"nll": loss, "loss": y.mean()}, "nll"),
        (lambda y, loss: (y.sum(), {"all": loss}), lambda returned: returned[1]["all"]),
    ],
)
def test_the_loss_is_found_in_what_is_returned(make: Any, loss: Any) -> None:
    y = torch.randn(5, 3)
    expected = y.square().mean()
    assert find_loss(make(y, expected), loss) == (expected, [])


def test_a_mean_of_outputs_is_named_in_one_line() -> None:
    said: list[str] = []
    capture(OfDataclass(), Inputs(torch.randn(5, 4)), notify=said.append)
    (line,) = said
    assert line.endswith("it returns no loss; the loss is the mean of output.logits, output.hidden")
    with pytest.raises(CaptureError, match=r"loss='nll' is no key or attribute.* with logits"):
        find_loss({"logits": torch.ones(2)}, "nll")


def test_dataclasses_are_read() -> None:
    module, x = OfDataclass(), torch.randn(5, 4)
    assert first_step(module, Inputs(x)) == pytest.approx(
        float(2 * module.layer(x).mean().detach()), abs=1e-6
    )


def test_an_integer_loss_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"its result is torch.int64.*by which nothing is trained"):
        capture(Returns(lambda y, loss: (y > 0).sum()), torch.randn(5, 4))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_compiled_module_is_unwrapped() -> None:
    plain, x = nn.Sequential(nn.Linear(4, 3), nn.ReLU()), torch.randn(5, 4)
    steps = [capture_step(module, x, notify=lambda line: None) for module in (plain, torch.compile(plain))]
    assert steps[0].graph.op_names == steps[1].graph.op_names


def test_a_module_is_placed_under_a_name_of_ones_own() -> None:
    plan = place(
        nn.Sequential(nn.Linear(4, 3)), torch.randn(5, 4), cluster="2xk80", placer="heft", name="mine"
    )
    assert plan.graph.name == "mine"


def two_losses() -> Returns:
    """Two losses of the same layer."""
    return Returns(lambda y, loss: {"first": loss, "second": y.abs().mean()})


def test_losses_that_are_named_in_a_list_are_added_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    module, x = two_losses(), torch.randn(5, 4)
    expected = sum(float(value.detach()) for value in module(x).values())
    assert first_step(module, x, loss=["first", "second"]) == pytest.approx(expected, abs=1e-6)
    assert "the loss is the sum of first, second for all parameters; place once for each" in (
        capsys.readouterr().err
    )
    with pytest.raises(CaptureError, match="loss='third' is no key or attribute"):
        capture(module, x, loss=["first", "third"])


@pytest.mark.parametrize("loss", [torch.ones(2), [], [torch.ones(2)], [["first"]], 3])
def test_what_names_no_loss_is_one_line(loss: Any) -> None:
    with pytest.raises(CaptureError, match="give a key, a list of keys or a function of what it returns"):
        capture(two_losses(), torch.randn(5, 4), loss=loss)


def test_the_recipe_for_a_gan_trains_each_part_by_its_own_loss() -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "run.md").read_text(encoding="utf-8")
    (recipe,) = (code for code in re.findall(r"```python\n(.*?)```", page, re.S) if "class Gan" in code)
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    start = "module, batch = Gan()"
    exec(recipe.replace(start, f"torch.manual_seed(1)\n{start}"), found)
    torch.manual_seed(1)
    module, batch = found["Gan"](), found["batch"]
    for _ in range(3):
        for part in ("d", "g"):
            own = list(module.get_submodule(part).parameters())
            gradients = torch.autograd.grad(module(*batch)[f"{part}_loss"], own)
            with torch.no_grad():
                for parameter, gradient in zip(own, gradients, strict=True):
                    parameter -= 1e-3 * gradient
    for name, trained in found["module"].named_parameters():
        torch.testing.assert_close(trained.detach(), module.get_parameter(name).detach())
        assert (found["plans"][name[0]].captured.op_of_update.keys()) == {
            f"{name[0]}.weight",
            f"{name[0]}.bias",
        }
