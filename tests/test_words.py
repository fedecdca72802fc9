"""One word has one meaning: names of classes, and words that another word replaced."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MODULES = [path for top in ("graphs", "envs", "agent") for path in sorted((ROOT / top).rglob("*.py"))]
MODELS = ("graphs/families/", "agent/experiments/runnable_models.py")
"""Models of papers, whose parts have the names that they have there."""
REPLACED = {"decision unit": "placement unit", "walk in a beam": "particle"}
"""Words of the past, and the words that the glossary has for them."""


def test_a_class_name_has_one_meaning() -> None:
    defined = defaultdict[str, list[str]](list)
    for path in MODULES:
        where = str(path.relative_to(ROOT))
        if not where.startswith(MODELS):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    defined[node.name].append(where)
    assert {name: places for name, places in defined.items() if len(places) > 1} == {}


@pytest.mark.parametrize("word", REPLACED)
def test_words_of_the_past_are_gone(word: str) -> None:
    texts = [*MODULES, *(path for top in ("graphs", "envs", "agent") for path in (ROOT / top).rglob("*.md"))]
    found = [path for path in texts if word in path.read_text(encoding="utf-8").lower()]
    assert not found, f"say {REPLACED[word]}"
