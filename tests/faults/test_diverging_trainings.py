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
from agent.learn.imitation.phases import OnPolicyImitation
from agent.learn.phase import Phase
from safetensors.numpy import load_file
from sb3_contrib import MaskablePPO

from agent.policy.serialization import load_policy
from tests import training_cases
from tests.faults.run_cases import begin, checkpoints, content, resume

place = training_cases.place

DIVERGING = {
    "imitation": ("--imitation-epochs", "3", "--search", "50", "--imitation-rate"),
    "on-policy imitation": ("--dagger-rounds", "2", "--dagger-rate"),
    "reinforcement": ("--learning-rate",),
}


@pytest.mark.parametrize("phase", DIVERGING)
@pytest.mark.parametrize("rate", ["1e6", "1e30"])
def test_a_training_that_diverges_is_no_success_and_keeps_what_was_good(
    place: Path, capsys: pytest.CaptureFixture[str], phase: str, rate: str
) -> None:
    good = () if phase == "imitation" else ("--imitation-epochs", "2", "--search", "50")
    flags = DIVERGING[phase]
    run = begin("bad", "--checkpoint-every", "1", *good, *flags, rate, code=1)
    line = capsys.readouterr().err.splitlines()[-1]
    updates = "[34]" if good else "1"
    assert re.match(f"train_agent.py: training diverged in {phase}, update {updates}: ", line)
    assert line.endswith(f"with a lower {flags[-1]} (now {float(rate):g})")
    result = json.loads((run / "result.json").read_text())
    assert result["finished"] is False
    assert line == f"train_agent.py: {result['failure']}"
    assert len(checkpoints(run)) == len(good[:2])
    for path in checkpoints(run):
        assert all(np.isfinite(tensor).all() for tensor in load_file(path).values())
    if good:
        load_policy(run)
        before = content(run)
        resume("bad", code=1)
        assert line == capsys.readouterr().err.splitlines()[-1]
        kept = [name for name in before if name.startswith(("checkpoints", "policy", "metrics"))]
        assert {name: content(run)[name] for name in kept} == {name: before[name] for name in kept}


def fill(network: torch.nn.Module, value: float) -> None:
    with torch.no_grad():
        for weights in network.parameters():
            weights.fill_(value)


def fill_policy(value: float) -> Callable[[Phase], None]:
    return lambda phase: fill(phase.state.policy, value)


def fill_average(phase: Phase) -> None:
    """Takes effect from the second update on, as the first copies the weights."""
    fill(phase.state.averaged_network, math.nan)


@pytest.mark.parametrize(
    ("where", "method", "spoil", "update", "found"),
    [
        (OnPolicyImitation, "learn", fill_policy(math.nan), 1, "the weights are not finite"),
        (OnPolicyImitation, "learn", fill_policy(1e38), 1, "the weights are not finite"),
        (OnPolicyImitation, "learn", fill_average, 2, "the averaged weights are not finite"),
        (OnPolicyImitation, "learn", fill_policy(1e30), 1, "the policy's scores are not finite"),
        (MaskablePPO, "train", lambda ppo: fill(ppo.policy, 1e30), 1, "the policy's scores are not finite"),
        (
            MaskablePPO,
            "train",
            lambda ppo: ppo.logger.record("train/value_loss", math.nan),
            1,
            "the value loss",
        ),
        (MaskablePPO, "_setup_model", lambda ppo: fill(ppo.policy, 1e30), 1, "the policy's scores are not"),
    ],
)
def test_weights_of_no_use_are_kept_nowhere(
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    where: type,
    method: str,
    spoil: Callable[[Any], None],
    update: int,
    found: str,
) -> None:
    real = getattr(where, method)

    def spoilt(learner: Any, *arguments: Any, **named: Any) -> Any:
        result = real(learner, *arguments, **named)
        spoil(learner)
        return result

    monkeypatch.setattr(where, method, spoilt)
    rounds = update if where is OnPolicyImitation else 0
    run = begin("bad", "--checkpoint-every", "1", "--dagger-rounds", str(rounds), code=1)
    assert f"update {update}: {found}" in capsys.readouterr().err
    assert len(checkpoints(run)) == update - 1
    assert (run / "policy.safetensors").exists() == (update > 1), "that of the first update is kept"
