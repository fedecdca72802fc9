"""A training whose numbers are not finite ends with one line, and keeps what was good."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sb3_contrib import MaskablePPO

from agent.learn.callbacks import AverageWeights
from agent.learn.ppo import PlacementPPO
from agent.policy.serialization import load_policy
from tests import training_cases
from tests.faults.run_cases import begin, checkpoints, content, resume

place = training_cases.place


@pytest.mark.parametrize(
    ("flag", "rate"),
    [("--learning-rate", "1e6"), ("--learning-rate", "1e30"), ("--final-learning-rate", "1e30")],
)
def test_a_training_that_diverges_is_no_success(
    place: Path, capsys: pytest.CaptureFixture[str], flag: str, rate: str
) -> None:
    run = begin("bad", "--checkpoint-every", "1", flag, rate, code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    assert re.match(r"train_agent.py: training diverged after [01] updates: ", line)
    assert line.endswith(f"with a lower {flag} (now {float(rate):g})")
    result = json.loads((run / "result.json").read_text())
    assert result["finished"] is False
    assert line == f"train_agent.py: {result['failure']}"
    for path in checkpoints(run):
        assert all(np.isfinite(tensor).all() for tensor in load_file(path).values())


def fill(network: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(value)


def fill_average(ppo: PlacementPPO) -> None:
    """Takes effect from the second update on, as the first copies the weights."""
    (average,) = (each for each in ppo.stateful_callbacks if isinstance(each, AverageWeights))
    fill(average.policy.network, math.nan)


def lose_value(ppo: PlacementPPO) -> None:
    """Takes effect in the third update."""
    if ppo.updates == 2:
        ppo.logger.record("train/value_loss", math.nan)


SCORES = "the policy's scores are not finite"


@pytest.mark.parametrize(
    ("where", "method", "spoil", "updates", "cause"),
    [
        (PlacementPPO, "train", lambda ppo: fill(ppo.policy, math.nan), 1, "the weights are not finite"),
        (PlacementPPO, "train", lambda ppo: fill(ppo.policy, 1e30), 1, SCORES),
        (PlacementPPO, "train", fill_average, 2, "the averaged weights are not finite"),
        (MaskablePPO, "train", lambda ppo: fill(ppo.policy, 1e30), 0, SCORES),
        (MaskablePPO, "train", lose_value, 2, "the value loss is nan"),
        (MaskablePPO, "_setup_model", lambda ppo: fill(ppo.policy, 1e30), 0, SCORES),
    ],
)
def test_weights_of_no_use_are_kept_nowhere_and_what_was_good_stays(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
    spoil: Callable[[PlacementPPO], None],
    updates: int,
    cause: str,
) -> None:
    real = getattr(where, method)

    def spoilt(ppo: PlacementPPO, *arguments: Any, **named: Any) -> Any:
        result = real(ppo, *arguments, **named)
        spoil(ppo)
        return result

    monkeypatch.setattr(where, method, spoilt)
    run = begin("bad", "--checkpoint-every", "1", code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    assert f"diverged after {updates} updates: {cause};" in line
    n_good = updates - (where is PlacementPPO)
    assert len(checkpoints(run)) == max(n_good, 0)
    assert (run / "policy.safetensors").exists() == (n_good > 0), "that of the first update is kept"
    if n_good > 0:
        load_policy(run)
        before = content(run)
        resume("bad", code=1)
        assert line == capsys.readouterr().err.splitlines()[-1]
        names = [name for name in before if name.startswith(("checkpoints", "policy", "metrics"))]
        assert {name: content(run)[name] for name in names} == {name: before[name] for name in names}
