"""What a model takes and returns: the loss that a step trains, and how a batch is cut."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from agent import place
from graphs.capture.capture import capture
from graphs.capture.loss import CaptureError, find_loss
from graphs.capture.structures import split_batch
from tests.graphs.capture.capture_cases import Calls, heard


@dataclass
class Outputs:
    """What a model returns, as a dataclass."""

    logits: Tensor
    hidden: Tensor


@dataclass
class Inputs:
    """What a model takes, as a dataclass."""

    x: Tensor


def of_dataclasses(layer: nn.Module, inputs: Inputs) -> Outputs:
    logits = layer(inputs.x)
    return Outputs(logits, 3 * logits)


def first_step(module: nn.Module, inputs: Any, **options: Any) -> float:
    plan = place(module, inputs, cluster="2xk80", placer="heft", **options)
    with plan.compile(module, devices=["cpu", "cpu"], lr=0.0) as runner:
        return float(runner.step(inputs))


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
    _, (line,) = heard(Calls(of_dataclasses), Inputs(torch.randn(5, 4)))
    assert line.endswith("it returns no loss; the loss is the mean of output.logits, output.hidden")
    with pytest.raises(CaptureError, match=r"loss='nll' is no key or attribute.* with logits"):
        find_loss({"logits": torch.ones(2)}, "nll")


def test_dataclasses_are_read() -> None:
    module, x = Calls(of_dataclasses), torch.randn(5, 4)
    assert first_step(module, Inputs(x)) == pytest.approx(
        float(2 * module.layer(x).mean().detach()), abs=1e-6
    )


def test_an_integer_loss_is_refused() -> None:
    with pytest.raises(CaptureError, match=r"its result is torch.int64.*by which nothing is trained"):
        capture(Calls(lambda layer, x: (layer(x) > 0).sum()), torch.randn(5, 4))


def two_losses() -> nn.Module:
    """Two losses of the same layer."""
    return Calls(lambda layer, x: {"first": layer(x).square().mean(), "second": layer(x).abs().mean()})


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


def test_a_batch_is_cut_where_tensors_have_its_size() -> None:
    batch = {
        "ids": torch.arange(12).view(6, 2),
        "mask": torch.ones(2, 2),
        "labels": [torch.arange(6), "text"],
    }
    parts = split_batch(batch, 3)
    assert len(parts) == 3
    assert torch.equal(torch.cat([part["ids"] for part in parts]), batch["ids"])
    assert all(part["mask"] is batch["mask"] and part["labels"][1] == "text" for part in parts)
    assert [part["labels"][0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    (first, second) = split_batch(torch.zeros(3, 4), 2, dim=1)
    assert [part[0].shape for part in (first, second)] == [(3, 2), (3, 2)]


TOKENS, POSITIONS, OFFSETS = torch.arange(48).reshape(8, 6), torch.zeros(1, 6), torch.tensor([0, 2, 3, 8])


@pytest.mark.parametrize(
    ("inputs", "settings", "cut"),
    [
        ((POSITIONS, TOKENS), {}, [None, TOKENS[:4]]),
        ((torch.zeros(6), TOKENS, TOKENS), {}, [None, TOKENS[:4], TOKENS[:4]]),
        ((torch.zeros(32), TOKENS), {}, [None, TOKENS[:4]]),  # has fewer dimensions
        ((torch.zeros(7, 9), torch.zeros(5, 9), TOKENS), {}, [None, None, TOKENS[:4]]),  # 2 divides neither
        ({"a": TOKENS[:6], "b": TOKENS[2:]}, {"names": ["b"]}, [None, TOKENS[2:5]]),
        ((torch.zeros(6, 6), TOKENS), {"names": [1]}, [None, TOKENS[:4]]),
        ((torch.zeros(8), torch.zeros(8)), {"names": ["1"]}, [None, torch.zeros(4)]),
        ((TOKENS, torch.tensor([0, 1, 4, 6, 8])), {}, [TOKENS[:4], torch.tensor([0, 1, 4])]),
        ((TOKENS, OFFSETS), {}, [TOKENS[:4], None]),  # a document lies in both microbatches
        ((TOKENS, torch.tensor([0, 5, 4, 6, 8])), {}, [TOKENS[:4], None]),
        ((TOKENS, torch.tensor([0, 4, 8], device="meta")), {}, [TOKENS[:4], None]),
    ],
)
def test_a_batch_is_cut_where_it_is(
    inputs: object, settings: dict[str, object], cut: list[Tensor | None]
) -> None:
    lines: list[str] = []
    found = split_batch(inputs, 2, **settings, notify=lines.append)[0]  # type: ignore[arg-type]
    found, given = (list(each.values()) if isinstance(each, dict) else each for each in (found, inputs))
    for tensor, whole, expected in zip(found, given, cut, strict=True):
        assert tensor is whole if expected is None else tensor.equal(expected)
    uncut = [list(whole.shape) for whole, expected in zip(given, cut, strict=True) if expected is None]
    assert [all(f"{shape}" in line for shape in uncut) for line in lines] == [True] * bool(uncut)
