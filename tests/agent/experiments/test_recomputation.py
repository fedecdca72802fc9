"""Steps under activation budgets: what they save, their peaks, and the tables of the page."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agent.experiments import pipeline_models, recomputation
from agent.experiments.command import main
from agent.experiments.recomputation import (
    OURS,
    PartitionedStep,
    RecomputationRow,
    peak_bytes,
    recomputation_rows,
)
from agent.experiments.rows import write_rows

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BATCH, WIDTH = 32, 16


class Waves(nn.Module):
    """Three layers whose sines are cheap to compute again."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x).sin().exp()
        return x.sum()


def waves() -> tuple[nn.Module, tuple[Tensor, ...]]:
    torch.manual_seed(0)
    return Waves(), (torch.rand(BATCH // recomputation.BATCHES, WIDTH),)


def test_storages_are_freed_after_their_last_use() -> None:
    graph = torch.fx.Graph()
    made = {"val": torch.empty(10, dtype=torch.float32)}
    node = graph.placeholder("x")
    node.meta = made
    for _ in range(3):
        node = graph.call_function(torch.ops.aten.sin.default, (node,))
        node.meta = {"val": torch.empty(10, dtype=torch.float32)}
    graph.output((node,))
    assert peak_bytes(graph) == 3 * 40  # the input stays; an op holds its own input and output


def test_budgets_are_kept_by_steps_with_equal_gradients() -> None:
    module, (few,) = waves()
    inputs = [torch.cat([few] * recomputation.BATCHES)]
    module(*inputs).backward()
    expected = [parameter.grad.clone() for parameter in module.parameters() if parameter.grad is not None]
    found = {}
    for share in (1.0, 0.5):
        step = PartitionedStep(module, inputs, OURS, share)
        step.run()
        torch.testing.assert_close([parameter.grad for parameter in module.parameters()], expected)
        found[share] = (*step.simulated(), step.measured_peak_bytes())
    (full_s, full_bytes, *full_peaks), (half_s, half_bytes, *half_peaks) = found.values()
    assert half_s > full_s > 0
    assert 0 < half_bytes <= full_bytes / 2
    assert half_bytes % (BATCH * WIDTH * 4) == 0
    assert all(half < full for half, full in zip(half_peaks, full_peaks, strict=True))


def test_rows_of_a_model_are_made_once_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(pipeline_models, "resnet", waves)
    monkeypatch.setattr(recomputation, "SHARES", (1.0, 0.5))
    monkeypatch.setattr(recomputation, "SHOWN", (0.5,))
    (rows,) = recomputation_rows(tmp_path, ("resnet",), 1)
    assert [row.solver for row in rows] == [*recomputation.SOLVERS] * 2
    monkeypatch.setattr(pipeline_models, "resnet", None)
    assert list(recomputation_rows(tmp_path, ("resnet",), 1)) == [rows]
    write_rows(tmp_path / "recomputation.csv.gz", rows)
    assert main(["recomputation", "--only", "tables", "--out", str(tmp_path)]) == 0
    first, second = capsys.readouterr().out.split("\n\n")
    assert f"| {OURS} | 1.000 | 1.000 | 1.000 | 1.000 | 0 of 1 | 0.0% | 0 |" in first
    assert "| resnet | greedy |" in second


def test_slower_steps_with_more_budget_are_counted() -> None:
    rows = [
        RecomputationRow("m", "dp", share, seconds, 1, 1, 1, 1.0) for share, seconds in ((1, 1), (0.5, 3))
    ]
    assert recomputation._slower_with_more(rows) == 0
    assert recomputation._slower_with_more(rows[::-1]) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--graphs", "bert"], "unknown model 'bert'; known are gpt, unet, resnet"),
        (["--rounds", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_line(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["recomputation", *words, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
