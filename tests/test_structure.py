"""Numbers that keep the house small: they may fall, not rise."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.sources import MODULES, ROOT, modules_after, name_of, tree_of

MOST_OF_THE_ENVIRONMENT = 35
"""Modules of ours, packages left out, that importing `PlacementEnv` may load. It is given problems, so it
needs nothing that makes them."""
MOST_OF_LEARNING = 85
"""The same of `PlacementPPO`."""
MOST_LINES, MOST_TEST_LINES = 48_700, 30_290
MOST_MODULES, MOST_SMALL_MODULES, SMALL = 313, 21, 60
"""Modules without tests, and how many of them, packages left out, have fewer lines than `SMALL`."""
MOST_INNER_IMPORTS = 22
"""Imports of our own modules inside functions, without tests."""
HOMES_OF_PIPELINES = (
    *("envs/pipeline/", "agent/pipeline/", "envs/runtime/torch_s", "envs/runtime/rank_stages.py"),
    *("agent/placing/place.py", "agent/placing/request.py", "agent/commands/"),
)
MOST_ON_PIPELINES = 8
"""Conditions that ask for pipelines elsewhere."""


def lines_of(path: Path) -> int:
    return len(path.read_text(encoding="utf-8").splitlines())


def nodes() -> Iterator[ast.AST]:
    return (node for path in MODULES for node in ast.walk(tree_of(path)))


def test_the_house_stays_small() -> None:
    assert sum(map(lines_of, (ROOT / "agent/learn").rglob("*.py"))) <= 2_900
    assert sum(map(lines_of, MODULES)) <= MOST_LINES
    assert sum(map(lines_of, (ROOT / "tests").rglob("*.py"))) <= MOST_TEST_LINES
    assert len(MODULES) <= MOST_MODULES
    small = [path for path in MODULES if path.stem != "__init__" and lines_of(path) < SMALL]
    assert len(small) <= MOST_SMALL_MODULES


def test_few_modules_are_imported_late() -> None:
    functions = (node for node in nodes() if isinstance(node, ast.FunctionDef))
    inner = {
        node for function in functions for node in ast.walk(function) if isinstance(node, ast.ImportFrom)
    }
    ours = [node for node in inner if str(node.module).split(".")[0] in ("graphs", "envs", "agent")]
    assert len(ours) <= MOST_INNER_IMPORTS


def test_kernels_return_no_named_tuples_to_python() -> None:
    """Numba calls their class to make them; an interrupt that arrives meanwhile crashes the process."""
    named = {
        node.name
        for node in nodes()
        if isinstance(node, ast.ClassDef) and any(ast.unparse(base) == "NamedTuple" for base in node.bases)
    }
    entries = [
        node
        for node in nodes()
        if isinstance(node, ast.FunctionDef)
        and any(
            "kernel(" in (text := ast.unparse(each)) and "entry=True" in text for each in node.decorator_list
        )
    ]
    assert len(entries) > 15
    for entry in entries:
        for node in ast.walk(entry):
            if isinstance(node, ast.Return) and node.value is not None:
                made = {ast.unparse(call.func) for call in ast.walk(node.value) if isinstance(call, ast.Call)}
                assert not made & named, f"{entry.name} returns a named tuple"


def loaded_by(module: str, then: str = "pass") -> set[str]:
    """Returns the modules of ours, packages left out, that a fresh interpreter holds after importing one."""
    ours = {name_of(path) for path in MODULES if path.stem != "__init__"}
    return ours & modules_after(f"import {module}; {then}")


def test_the_environment_needs_few_modules_and_no_pipelines() -> None:
    modules = loaded_by("envs.placement.env")
    assert len(modules) <= MOST_OF_THE_ENVIRONMENT, sorted(modules)
    assert not [name for name in modules if name.startswith(("envs.pipeline", "agent"))]


def test_learning_needs_no_pipelines() -> None:
    modules = loaded_by("agent.learn.ppo")
    assert len(modules) <= MOST_OF_LEARNING, sorted(modules)
    assert not [name for name in modules if "pipeline" in name]


STEP_PLACED = "from graphs.dataset import load_family; agent.place(load_family('gpt')[0], placer='single')"


@pytest.mark.parametrize(("module", "then"), [("agent.placers.base", "pass"), ("agent", STEP_PLACED)])
def test_a_step_needs_no_pipelines(module: str, then: str) -> None:
    modules = loaded_by(module, then)
    assert not [name for name in modules if name.startswith(("envs.pipeline", "agent.pipeline"))]


def conditions(tree: ast.Module) -> Iterator[ast.expr]:
    for node in ast.walk(tree):
        if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
            yield node.test
        elif isinstance(node, ast.comprehension):
            yield from node.ifs


def test_few_conditions_ask_for_pipelines() -> None:
    """A condition does if a name in it contains `pipelin`, or is that of the other kind of objective, `STEP`.

    Pipelines are at home in their rooms, in what runs their stages, and behind the front doors.
    """
    asking = []
    for path in MODULES:
        where = path.relative_to(ROOT).as_posix()
        for condition in conditions(tree_of(path)) if not where.startswith(HOMES_OF_PIPELINES) else ():
            names = [getattr(node, "id", getattr(node, "attr", "")) for node in ast.walk(condition)]
            if any("pipelin" in str(name).lower() or name == "STEP" for name in names):
                asking.append(f"{where}: {ast.unparse(condition)}")
    assert len(asking) <= MOST_ON_PIPELINES, asking
