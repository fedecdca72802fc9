"""Docstrings begin plainly, kernels say what they take, and no packed column is read by a literal number."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [path for top in ("graphs", "envs", "agent") for path in sorted((ROOT / top).rglob("*.py"))]
CLAUSES = {"How", "Lets", "What", "When", "Where", "Whether", "Which", "Who"}
"""First words that make a docstring a clause, which the reader must finish."""
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


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, and the texts under its constants."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        body = getattr(node, "body", None)
        for before, text in itertools.pairwise([None, *body] if isinstance(body, list) else []):
            if isinstance(before, ast.Assign | ast.AnnAssign | None) and isinstance(text, ast.Expr):
                value = text.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_begin_with_a_verb_or_a_noun(path: Path) -> None:
    texts = list(docstrings(path))
    assert texts or not path.read_text(encoding="utf-8")
    assert not [text for text in texts if text.split()[0].strip(",:") in CLAUSES]


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


def assert_columns_have_names(path: Path, tree: ast.AST, packed: tuple[str, ...]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            name = ast.unparse(node.value).rpartition(".")[2]
            assert name not in packed, f"{path}:{node.lineno}: name the column in {ast.unparse(node)}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(ROOT)))
def test_packed_columns_have_names(path: Path) -> None:
    for kernel in kernels(path):
        assert_columns_have_names(path, kernel, PACKED)
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert_columns_have_names(path, tree, ("rules", "gaps", "scales", "best_score"))


@pytest.mark.parametrize(
    ("path", "kernel"), KERNELS, ids=[f"{path.stem}.{kernel.name}" for path, kernel in KERNELS]
)
def test_kernels_have_one_dialect(path: Path, kernel: ast.FunctionDef) -> None:
    """An entry is `name: meaning, unit, dtype (shape); written.`, or the type of a tuple of arrays."""
    section = (ast.get_docstring(kernel) or "").partition("Args:")[2]
    for wrong, right in {
        r"\w+ \(\w+\):": "name: `Type`",
        r": written[:,]": "name: meaning; written",
        r", written\.": "name: meaning; written",
        r"only read|overwritten|updated": "written, or nothing for what is read",
        r"absent": "unplaced",
        r"seconds \(": "seconds, (shape)",
    }.items():
        assert not re.search(wrong, section), f"{path}: {kernel.name}: write {right}"
