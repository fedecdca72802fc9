"""Docstrings begin plainly, kernels say what they take, and a word of the glossary has one meaning."""

from __future__ import annotations

import ast
import itertools
import re
from collections import defaultdict
from collections.abc import Iterator
from inspect import cleandoc
from pathlib import Path

import pytest

from tests.sources import MODULES, ROOT, tree_of

CLAUSES = {"How", "Lets", "What", "When", "Where", "Whether", "Which", "Who"}
"""First words that make a docstring a clause, which the reader must finish."""
BEGINNINGS = {"of", "whether", "what", "as", "that", "in", "how"}
"""First words of entries that leave the noun to the reader."""
HAPPENED = {"found", "at", "own", "known", "given", "kept", "each"}
"""Names that say what happened to a value, and the lines that may hold one."""
MOST_HAPPENED = 60
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


def entries(text: str) -> Iterator[str]:
    """What the entries of Args and Attributes of a docstring say, without their names."""
    for section in re.findall(r"^(?:Args|Attributes):\n((?:[ ]{4}.*\n?|\n)+)", text, re.M):
        yield from re.findall(r"^    [*\w`, ]+: (.+)", section, re.M)


def test_most_entries_begin_with_their_noun() -> None:
    said = [entry for path in MODULES for text in docstrings(path) for entry in entries(cleandoc(text))]
    clauses = [entry for entry in said if entry.split()[0] in BEGINNINGS]
    assert len(said) > 1_000
    assert len(clauses) <= 0.08 * len(said)


def test_variables_are_named_for_what_they_hold() -> None:
    lines = {
        (path, node.lineno)
        for path in MODULES
        for node in ast.walk(tree_of(path))
        if (isinstance(node, ast.Name) and node.id in HAPPENED)
        or (isinstance(node, ast.arg) and node.arg in HAPPENED)
    }
    assert len(lines) < MOST_HAPPENED, sorted(lines)


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


def classes(path: Path) -> list[str]:
    """Names of the classes of a module."""
    return [node.name for node in ast.walk(tree_of(path)) if isinstance(node, ast.ClassDef)]


MODELS = ("graphs/families/",)
"""Models of papers, whose parts have the names that they have there."""
REPLACED = {"decision unit": "placement unit", "walk in a beam": "particle"}
"""Words of the past, and the words that the glossary has for them."""


def test_a_class_name_has_one_meaning() -> None:
    defined = defaultdict[str, list[str]](list)
    for path in MODULES:
        where = str(path.relative_to(ROOT))
        if not where.startswith(MODELS):
            for name in classes(path):
                if not name.startswith("_"):
                    defined[name].append(where)
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
