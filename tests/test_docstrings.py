"""Docstrings begin plainly, kernels say what they take, and no packed column is read by a literal number."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import MODULES, tree_of

CLAUSES = {"How", "Lets", "What", "When", "Where", "Whether", "Which", "Who"}
"""First words that make a docstring a clause, which the reader must finish."""
PACKED = ("rules", "gaps", "state", "scales", "first", "best_score", "saved", "row")
"""Arrays whose entries are columns with names."""


def kernels(path: Path) -> list[ast.FunctionDef]:
    """Functions under `@kernel`, however it is called."""
    tree = tree_of(path)
    return [
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef)
        and any(ast.unparse(decorator).partition("(")[0] == "kernel" for decorator in node.decorator_list)
    ]


def docstrings(path: Path) -> Iterator[str]:
    """Docstrings of a module, its classes and functions, and the texts under its constants."""
    for node in ast.walk(tree_of(path)):
        body = getattr(node, "body", None)
        for before, text in itertools.pairwise([None, *body] if isinstance(body, list) else []):
            if isinstance(before, ast.Assign | ast.AnnAssign | None) and isinstance(text, ast.Expr):
                value = text.value
                if isinstance(value, ast.Constant) and isinstance(value.value, str):
                    yield value.value


def test_docstrings_begin_with_a_verb_or_a_noun() -> None:
    for path in MODULES:
        texts = list(docstrings(path))
        assert texts or not path.read_text(encoding="utf-8"), path
        assert not [text for text in texts if text.split()[0].strip(",:") in CLAUSES], path


KERNELS = [(path, kernel) for path in MODULES for kernel in kernels(path)]


def test_kernels_say_what_they_take() -> None:
    """An entry, or the head of the module or of a package of it, says it; no entry repeats one of a head."""
    assert len(KERNELS) > 60
    for path, kernel in KERNELS:
        parameters = [argument.arg for argument in kernel.args.args]
        section = (ast.get_docstring(kernel) or "").partition("Args:")[2]
        packages = [file for folder in path.parents if (file := folder / "__init__.py").exists()]
        heads = "\n".join(ast.get_docstring(tree_of(file)) or "" for file in (path, *packages))
        missing = [name for name in parameters if not re.search(rf"\b{name}\b", section + heads)]
        assert len(parameters) < 3 or not missing, f"{path}: {kernel.name} says nothing of {missing}"
        again = {line.strip() for line in section.splitlines() if line.strip() in heads.split("\n    ")}
        assert not again, f"{path}: {kernel.name} repeats {again}"


def assert_columns_have_names(path: Path, tree: ast.AST, packed: tuple[str, ...]) -> None:
    for node in ast.walk(tree):
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            name = ast.unparse(node.value).rpartition(".")[2]
            assert name not in packed, f"{path}:{node.lineno}: name the column in {ast.unparse(node)}"


def test_packed_columns_have_names() -> None:
    for path, kernel in KERNELS:
        assert_columns_have_names(path, kernel, PACKED)
    for path in MODULES:
        tree = tree_of(path)
        assert_columns_have_names(path, tree, ("rules", "gaps", "scales", "best_score"))


@pytest.mark.parametrize(
    ("wrong", "right"),
    {
        r"\w+ \(\w+\):": "name: `Type`",
        r": written[:,]": "name: meaning; written",
        r", written\.": "name: meaning; written",
        r"only read|overwritten|updated": "written, or nothing for what is read",
        r"absent": "unplaced",
        r"seconds \(": "seconds, (shape)",
    }.items(),
)
def test_kernels_have_one_dialect(wrong: str, right: str) -> None:
    """An entry is `name: meaning, unit, dtype (shape); written.`, or the type of a tuple of arrays."""
    for path, kernel in KERNELS:
        section = (ast.get_docstring(kernel) or "").partition("Args:")[2]
        assert not re.search(wrong, section), f"{path}: {kernel.name}: write {right}"
