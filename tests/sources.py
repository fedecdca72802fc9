"""The modules of the three packages, for the tests that read their text or import them anew."""

from __future__ import annotations

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("graphs", "envs", "agent")
MODULES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed module of a path."""
    return ast.parse(path.read_text(encoding="utf-8"))


def printed_by(code: str) -> list[str]:
    """Words that a fresh interpreter prints which runs some code."""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.split()
