"""The modules of the three packages, for tests that read or import them; commands that run."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("graphs", "envs", "agent")
MODULES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed module of a path."""
    return ast.parse(path.read_text(encoding="utf-8"))


def name_of(path: Path) -> str:
    """The dotted name of a module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def output_of(
    command: Sequence[str | Path], folder: Path = ROOT, environment: Mapping[str, str] | None = None
) -> str:
    """What a command prints that must succeed."""
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def modules_after(code: str) -> set[str]:
    """Names of the modules that a fresh interpreter holds after running some code."""
    report = f"{code}\nimport sys; print('loaded', *sys.modules)"
    return set(output_of([sys.executable, "-c", report]).rpartition("loaded ")[2].split())
