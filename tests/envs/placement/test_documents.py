"""The documents of the environment: examples run, and the table names the features as they are declared."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from agent.policy.policy import torch_threads
from agent.policy.serialization import load_policy
from envs.placement.observation.features import DEVICE_FEATURES
from envs.simulator.simulate import simulate_problem

ROOT = Path(__file__).parents[3]
WALK, SCRIPTS, RUNS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("explanation/walk.md", "how-to/environment.md", "how-to/run.md")
)
EXAMPLES = re.findall(r"```python\n(.*?)```", RUNS + SCRIPTS, flags=re.DOTALL)


def test_the_table_lists_every_feature() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", WALK, flags=re.MULTILINE)
    declared = [(feature.name, feature.group, feature.unit) for feature in DEVICE_FEATURES]
    assert [(name, group, unit) for name, group, unit, _ in rows] == declared


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = EXAMPLES[-1]
    short, n = re.subn(r"n_steps=\d+, (.*)learn\([\d_]+\)", r"n_steps=64, \1learn(64)", example)
    assert n == 1
    names: dict[str, object] = {}
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        exec(short, names)
        assert torch.get_num_threads() == 1, "more threads take several times as long"
    finally:
        torch.set_num_threads(n_threads)
    model = names["model"]
    assert model.num_timesteps == 64
    result = names["info"]["result"]  # type: ignore[index]
    assert float(capsys.readouterr().out.splitlines()[-1]) == result.ratio_to_single
    problem = names["problems"][0]  # type: ignore[index]
    assert result.step_time_s == simulate_problem(problem, result.device_of).total_s


def test_the_example_of_sb3_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(each for each in EXAMPLES if "PlacementPPO" in each)
    short, n = re.subn(
        r"n_steps=256(.*)learn\(20_000(.*)eval_freq=256",
        r"n_steps=8\1learn(128\2eval_freq=8",
        example,
        flags=re.S,
    )
    names: dict[str, object] = {}
    with torch_threads(1):
        exec(short, names)
    assert n == 1
    assert names["model"].num_timesteps == 128  # type: ignore[attr-defined]
    assert load_policy("my_policy").network


def test_the_placed_module_trains() -> None:
    names: dict[str, object] = {}
    exec(next(example for example in EXAMPLES if "plan.compile" in example), names)
    assert isinstance(names["loss"], torch.Tensor)
    assert names["runner"].n_steps == 10  # type: ignore[attr-defined]


def test_importing_the_package_registers_the_environment_and_stays_light() -> None:
    code = (
        "import sys, envs, gymnasium\n"
        "assert 'placewalk/Placement-v1' in gymnasium.registry\n"
        "print(*{'torch', 'numba', 'stable_baselines3', 'sb3_contrib'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split() == []
