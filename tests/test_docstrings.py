"""Every kernel says what it takes, and no packed column is read by a literal number."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [path for top in ("envs", "agent") for path in sorted((ROOT / top).rglob("*.py"))]
PACKED = ("rules", "gaps", "state", "scales", "first", "best_score", "saved", "row")
"""Arrays whose entries are columns with names."""


def kernels(path: Path) -> list[ast.FunctionDef]:
    """Functions under `@kernel`, however it is called."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).partition("(")[0] == "kernel" for decorator in node.decorator_list)
    ]


KERNELS = [(path, kernel) for path in MODULES for kernel in kernels(path)]


def test_there_are_kernels() -> None:
    assert len(KERNELS) > 60


@pytest.mark.parametrize(
    ("path", "kernel"), KERNELS, ids=[f"{path.stem}.{kernel.name}" for path, kernel in KERNELS]
)
def test_kernels_say_what_they_take(path: Path, kernel: ast.FunctionDef) -> None:
    parameters = [argument.arg for argument in kernel.args.args]
    if len(parameters) < 3:
        return
    doc = ast.get_docstring(kernel) or ""
    assert "Args:" in doc, f"{path}: {kernel.name} has no Args section"
    section = doc.partition("Args:")[2]
    missing = [name for name in parameters if not re.search(rf"\b{name}\b", section)]
    assert not missing, f"{path}: {kernel.name} says nothing of {', '.join(missing)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packed_columns_have_names(path: Path) -> None:
    for kernel in kernels(path):
        for node in ast.walk(kernel):
            if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
                name = ast.unparse(node.value).rpartition(".")[2]
                assert name not in PACKED, f"{path}:{node.lineno}: name the column in {ast.unparse(node)}"
