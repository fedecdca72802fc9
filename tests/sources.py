"""The modules of the three packages, for the tests that read their text."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[1]
TOPS = ("graphs", "envs", "agent")
MODULES = [path for top in TOPS for path in sorted((ROOT / top).rglob("*.py"))]


@cache
def tree_of(path: Path) -> ast.Module:
    """The parsed module of a path."""
    return ast.parse(path.read_text(encoding="utf-8"))
