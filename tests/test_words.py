"""One word has one meaning: names of classes, and words that another word replaced."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.sources import MODULES, ROOT, tree_of

MODELS = ("graphs/families/",)
"""Models of papers, whose parts have the names that they have there."""
REPLACED = {"decision unit": "placement unit", "walk in a beam": "particle"}
"""Words of the past, and the words that the glossary has for them."""


def test_a_class_name_has_one_meaning() -> None:
    defined = defaultdict[str, list[str]](list)
    for path in MODULES:
        where = str(path.relative_to(ROOT))
        if not where.startswith(MODELS):
            for node in ast.walk(tree_of(path)):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(where)
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


@pytest.mark.parametrize("word", REPLACED)
def test_words_of_the_past_are_gone(word: str) -> None:
    tops = ("graphs", "envs", "agent", "docs")
    texts = [*MODULES, *(path for top in tops for path in (ROOT / top).rglob("*.md"))]
    found = [path for path in texts if word in path.read_text(encoding="utf-8").lower()]
    assert not found, f"say {REPLACED[word]}"


def names_of(path: Path) -> set[str]:
    """Names that a module defines or reads, and its words in docstrings and comments, in lower case."""
    return set(re.findall(r"[a-z]+", path.read_text(encoding="utf-8").lower().replace("_", " ")))


OWNERS = {
    "attempt": ("agent/studies/", "agent/lab/"),
    "attempts": ("agent/studies/", "agent/lab/"),
    "fidelity": ("agent/evaluation/measured/", "agent/commands/", "agent/lab/"),
}
"""Words of one meaning, and the rooms that may use them: all others mean something else by them."""


@pytest.mark.parametrize("word", OWNERS)
def test_a_word_stays_in_its_rooms(word: str) -> None:
    users = [str(path.relative_to(ROOT)) for path in MODULES if word in names_of(path)]
    assert users, f"nothing is called {word}"
    assert not [where for where in users if not where.startswith(OWNERS[word])]


def classes(path: Path) -> list[str]:
    """Names of the classes of a module."""
    tree = tree_of(path)
    return [node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def test_a_plan_is_what_place_returns() -> None:
    plans = [(path.name, name) for path in MODULES for name in classes(path) if re.search(r"Plans?\b", name)]
    assert plans == [("plan.py", "Plan"), ("plan.py", "PipelinePlan")]


@pytest.mark.parametrize("top", ["agent/bounds", "agent/placers"])
def test_a_linear_program_is_an_lp(top: str) -> None:
    for path in sorted((ROOT / top).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"linear program(?! \(LP\))|constraint program\b", text), f"{path}: say LP"
        assert not [name for name in classes(path) if name.endswith("Program")], path


def test_a_device_runs_a_device_program() -> None:
    programs = [name for path in (ROOT / "envs").rglob("*.py") for name in classes(path) if "Program" in name]
    assert programs == ["DeviceProgram"]


def test_a_module_name_says_more_than_study_or_measure() -> None:
    rooms = [path for path in MODULES if "lab" not in path.parts]
    vague = re.compile(r"study|studies|plans|measur\w*")
    assert not [path for path in rooms if vague.fullmatch(path.stem)]


def test_the_glossary_has_each_word_once() -> None:
    text = (ROOT / "docs/explanation/words.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (.+?) \|", text.partition("# Words")[2], flags=re.M)
    words = [word for row in rows for word in row.split(", ")]
    assert len(words) == len(set(words)) > 30
    for word in ("trial", "plan", "program", "placement unit", "attempt", "fidelity", "measurement", "row"):
        assert word in words
