"""A plan that Python saved is scored by the command line, as the README shows."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
import torch
from torch import nn

from agent import place

MODEL = """
import torch
from torch import nn

def perceptron():
    with torch.device("meta"):
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)), (torch.randn(32, 64),)
"""


def test_a_saved_plan_is_scored_under_the_name_of_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from agent.commands.evaluate import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "my_saved_model.py").write_text(MODEL)
    with torch.device("meta"):
        module = nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64))
    plan = place(module, (torch.randn(32, 64, device="meta"),), cluster="2xk80", placer="contiguous")
    plan.save("placement.json")
    words = ["--model", "my_saved_model:perceptron", "--cluster", "2xk80", "--placements", "placement.json"]
    assert main([*words, "--out", "out"]) == 0
    assert "placement.json: is for graph 'Sequential', here 'perceptron'" in capsys.readouterr().err
    (row,) = csv.DictReader((tmp_path / "out" / "results.csv").read_text().splitlines())
    assert float(row["step_time_s"]) == plan.step_time.total_s
    other = place(nn.Linear(64, 64), torch.randn(32, 64), cluster="2xk80", placer="single")
    other.save("placement.json")
    assert main([*words, "--out", "new"]) == 2
    assert "is for graph 'Linear', which is not one of the given graphs" in capsys.readouterr().err


@pytest.mark.parametrize("returned", ["module, x, y", "module, (x, y), [x]", "module, (x, y), []"])
def test_a_third_value_that_is_no_loss_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], returned: str
) -> None:
    from agent.commands.evaluate import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    name = f"my_inputs_{len(returned)}"
    (tmp_path / f"{name}.py").write_text(
        "import torch\nfrom torch import nn\n\n"
        "def make():\n    module, x, y = nn.Bilinear(4, 4, 4), torch.ones(2, 4), torch.ones(2, 4)\n"
        f"    return {returned}\n"
    )
    assert main(["--model", f"{name}:make", "--placers", "single", "--out", "out"]) == 2
    error = capsys.readouterr().err
    assert "give a key, a list of keys or a function of what it returns" in error
    assert "several inputs are one tuple: (module, (x, y))" in error
