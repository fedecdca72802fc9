"""Imports go one way, and what must start fast loads nothing heavy."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
LAYERS = ["graphs", "envs", "agent"]
COMMANDS = sorted(path.stem for path in ROOT.glob("*.py"))
MODULES = [path for layer in LAYERS for path in sorted((ROOT / layer).rglob("*.py"))]
HEAVY = ["torch", "torch_geometric", "stable_baselines3", "sb3_contrib", "tensorboard", "ray", "optuna"]


def imported(path: Path) -> set[str]:
    """Top-level names that a module imports, anywhere in its code."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: import by the full name"
            names.add(node.module or "")
    return {name.partition(".")[0] for name in names}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_go_one_way(path: Path) -> None:
    layer = LAYERS.index(path.relative_to(ROOT).parts[0])
    assert not imported(path) & {*LAYERS[layer + 1 :], *COMMANDS}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_no_module_is_a_drawer(path: Path) -> None:
    assert path.stem not in {"utils", "common", "helpers", "types"}


def loaded(code: str) -> set[str]:
    """Top-level modules that a fresh interpreter holds after running `code`."""
    report = f"{code}\nimport sys; print('loaded', *{{name.partition('.')[0] for name in sys.modules}})"
    done = subprocess.run(
        [sys.executable, "-c", report], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    return set(done.stdout.splitlines()[-1].split()[1:])


@pytest.mark.parametrize("package", ["graphs", "envs"])
def test_packages_load_no_torch(package: str) -> None:
    assert not loaded(f"import {package}") & set(HEAVY)


@pytest.mark.parametrize("command", COMMANDS)
def test_help_loads_nothing_heavy(command: str) -> None:
    asked = f"import {command}\ntry:\n    {command}.main(['--help'])\nexcept SystemExit:\n    pass"
    assert not loaded(asked) & set(HEAVY)
