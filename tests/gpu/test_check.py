"""The check of a GPU goes on after what fails and says it; here its parts run without a GPU."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from agent.calibration import quick
from envs.cluster.cluster import Cluster
from graphs.capture.capture import capture
from tests.agent.placement_cases import make_cluster
from tests.gpu import check, model_steps, parts
from tests.gpu.check import Settings
from tests.gpu.models import MODELS
from tests.gpu.rows import FAILED, OK, SKIPPED

MISSING = ("gymnasium", "stable_baselines3", "sb3_contrib", "ortools", "pymetis")
"""Packages that an image for CUDA may lack."""


@pytest.fixture
def own_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    """Has this machine measured, as one processor."""
    one = make_cluster(1)
    found = Cluster("this", (replace(one.devices[0], name="cpu"),), one.bytes_per_s, one.latency_s)
    monkeypatch.setattr(quick, "get_or_measure_cluster", lambda name: found)


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is here")
def test_without_a_gpu_all_is_skipped_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert check.main(["--out", str(tmp_path / "new")]) == 0
    record = json.loads((tmp_path / "new" / "check.json").read_text())
    assert [row["state"] for row in record["rows"]] == [SKIPPED] * len(check.LIMITS_S)
    assert record["about"]["torch"] == torch.__version__
    lines = (tmp_path / "new" / "check.md").read_text().splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 2 + len(check.LIMITS_S)
    assert "torch finds no CUDA device" in capsys.readouterr().out


WRITES = "import json, sys; open(sys.argv[1], 'a').write(json.dumps({'part': 'x', 'name': 'found'}) + '\\n')"
STARTS = "import subprocess; child = subprocess.Popen(['sleep', '600'])"
STARTS += "; open(sys.argv[1] + '.pid', 'w').write(str(child.pid))"
SCRIPTS = {
    "compile": "pass",
    "dies": "import os; os._exit(3)",
    "hangs": f"{WRITES}; {STARTS}; import time; time.sleep(600)",
    "raises": "raise ValueError('no such thing')",
    "works": WRITES,
}


def test_it_goes_on_after_a_part_that_dies_hangs_or_raises(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def command_of(part: str, settings: Settings, limit_s: float) -> list[str]:
        return [sys.executable, "-c", SCRIPTS[part], str(settings.folder / f"{part}.jsonl")]

    monkeypatch.setattr(check, "command_of", command_of)
    limits_s = {"dies": 60.0, "hangs": 3.0, "raises": 60.0, "works": 60.0}
    rows = check.run_all(Settings(tmp_path, "cpu", os.environ), limits_s, 120.0)
    failed = {row.part: row.note for row in rows if row.state == FAILED}
    assert failed == {
        "dies": "ended with 3: it said nothing; see dies.log",
        "hangs": "stopped after 3 s; see hangs.log",
        "raises": "ended with 1: ValueError: no such thing; see raises.log",
    }
    assert [row.name for row in rows if row.part == "x"] == ["found", "found"]
    with pytest.raises(ProcessLookupError):
        wait_for_the_end_of(int((tmp_path / "hangs.jsonl.pid").read_text()))
    check.show(rows)
    assert "failed: hangs, hangs: stopped after 3 s" in capsys.readouterr().out


def wait_for_the_end_of(pid: int) -> None:
    """Raises `ProcessLookupError` once a process has ended."""
    for _ in range(100):
        os.kill(pid, 0)
        if Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z":
            raise ProcessLookupError
        time.sleep(0.1)


def broken() -> tuple[nn.Module, tuple[Tensor, ...]]:
    return nn.Linear(3, 3), (torch.zeros(2, 4),)


def test_steps_of_models_are_predicted_and_measured(own_cluster: None) -> None:
    models = {
        "linear": lambda: (nn.Sequential(nn.Linear(8, 4), nn.GELU(), Sum()), (torch.ones(2, 8),)),
        "broken": broken,
    }
    rows = list(model_steps.compare_models("cpu", 100.0, models))
    assert [row.state for row in rows] == [OK] * 4 + [FAILED] * 4 + [OK]
    assert [row.name for row in rows[:2]] == ["linear, training, fp32", "linear, training, amp-bf16"]
    assert all((row.predicted_s or 0) > 0 and (row.measured_s or 0) > 0 for row in rows[:4])
    assert rows[4].note.startswith("CaptureError: model 'Linear' cannot be captured")
    assert rows[-1].name == "time of 4 steps"


class Sum(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.sum()


@pytest.mark.parametrize("name", MODELS)
def test_a_model_can_be_captured_and_names_no_device(name: str) -> None:
    with torch.device("meta"):
        module, inputs = MODELS[name]()
    assert module(*inputs).device.type == "meta"
    if name == "perceptron":
        assert "backward" in capture(module, inputs).phases


@pytest.mark.parametrize("n_used", [0, 1, 2])
def test_losses_of_placements_are_compared(n_used: int, own_cluster: None) -> None:
    row = parts._on_one_gpu("", "ptb", "cpu", n_used) if n_used else parts._on_gpu_and_host("ptb", "cpu")
    assert row.state == OK
    assert "3 losses as of the plain model" in row.note


def test_the_policy_part_runs_without_packages_that_an_image_lacks() -> None:
    script = f"""
import sys
for name in {MISSING}:
    sys.modules[name] = None
import agent, numpy
from agent.placers.base import PLACERS, Budget, PlacerError
from tests.gpu import check, parts
print(parts._decode_shipped("cpu").state)
print(parts._update("sage", "cpu").state)
print(parts.tried("policy", "PPO", lambda: parts._reinforce("cpu")).note)
try:
    PLACERS["metis"].place(parts._problem(), Budget(10), numpy.random.default_rng(0))
except PlacerError as error:
    print(error)
"""
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    lines = found.stdout.splitlines()
    assert lines == [
        OK,
        OK,
        "sb3_contrib is not installed; give wheels in a folder",
        "placer 'metis' needs the package pymetis, which is not installed here; install it, or use another "
        "placer",
    ]
