"""Pages of results: short, with rows beside them, and no number that their command does not print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agent.lab.command import main
from agent.lab.experiment import EXPERIMENTS, RESULTS

ROOT = Path(__file__).parents[3]
INDEX, HISTORY = RESULTS.parent / "RESULTS.md", RESULTS.parent / "HISTORY.md"
FILES = sorted(RESULTS.glob("*.md"))
TEXTS = [INDEX, HISTORY, *FILES]
WITH_TABLES = [path for path in FILES if path.stem != "negatives"]
LIVE = [path for path in WITH_TABLES if path.stem in EXPERIMENTS]
FROZEN = [path for path in WITH_TABLES if path not in LIVE]
MAX_WORDS = 500
MAX_TABLES = 2
DECIMAL = re.compile(r"\d+\.\d+%?")
HEADS = ("**Question.**", "**Set-up.**", "**Result.**", "**Conclusion.**", "**Commands.**")
COMMAND, TABLES = "python -m agent.lab ", " --only tables"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def prose(path: Path) -> str:
    text = re.sub(r"^```\n.*?^```$", "", read(path), flags=re.M | re.S)
    return "\n".join(line for line in text.splitlines() if not line.startswith("|"))


def links(path: Path) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)]+)\)", read(path)) if "://" not in target]


def commands(path: Path) -> list[str]:
    blocks = re.findall(r"^```\n(.*?)^```$", read(path), re.M | re.S)
    return [line for block in blocks for line in block.splitlines()]


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: path.stem)
def test_a_page_is_short_and_its_links_lead_somewhere(path: Path) -> None:
    if path not in (INDEX, HISTORY):
        assert len(prose(path).split()) <= MAX_WORDS
    for target in links(path):
        file, _, section = target.partition("#")
        assert (path.parent / file).exists(), target
        assert not section, f"{target}: link to a page, not to a section"


@pytest.mark.parametrize("path", WITH_TABLES, ids=lambda path: path.stem)
def test_a_page_has_all_parts_in_order(path: Path) -> None:
    text = read(path)
    places = [text.find(f"\n{head}") for head in HEADS]
    assert -1 not in places
    assert places == sorted(places)
    tables = sum(line.startswith("| ---") for line in text.splitlines())
    assert 1 <= tables <= MAX_TABLES
    assert any(".csv" in target for target in links(path)), "the page names no rows"


@pytest.mark.parametrize("path", LIVE, ids=lambda path: path.stem)
def test_every_number_of_a_page_is_printed_by_its_command(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table lines as they are; of the text, numbers with a point, but for those of the set-up."""
    (command,) = [line for line in commands(path) if line.startswith(COMMAND) and line.endswith(TABLES)]
    capsys.readouterr()
    assert main(shlex.split(command.removeprefix(COMMAND))) == 0
    printed = capsys.readouterr().out
    assert not {*table_lines(read(path))} - {*table_lines(printed)}
    setup, result = prose(path).split("**Result.**")
    found = re.sub(r"\]\([^)]+\)", "]", setup.split("**Set-up.**")[0] + result)
    (row,) = [line for line in table_lines(read(INDEX)) if f"results/{path.name}" in line]
    assert not {*DECIMAL.findall(found), *DECIMAL.findall(row)} - {*DECIMAL.findall(printed)}


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_page_names_the_commit_at_which_its_tables_are_printed(path: Path) -> None:
    tables = f"python -m agent.experiments {path.stem}{TABLES}  # at "
    (commit,) = [line.removeprefix(tables) for line in commands(path) if line.startswith(tables)]
    assert re.fullmatch(r"[0-9a-f]{7}", commit)
    assert f"Settled: commands marked `# at {commit}` run at that commit." in prose(path)
    assert not [line for line in commands(path) if line.startswith(COMMAND)]


def test_every_experiment_has_a_page_and_every_page_a_line_of_the_index() -> None:
    assert {path.stem for path in LIVE} == set(EXPERIMENTS)
    assert all(f"results/{path.name}" in links(INDEX) for path in FILES)


def test_every_file_of_rows_belongs_to_a_page() -> None:
    named = {(path.parent / target).resolve() for path in TEXTS for target in links(path)}
    rows = {path for path in RESULTS.iterdir() if path.suffix != ".md"}
    assert rows
    assert rows <= named
    assert {RESULTS / name for experiment in EXPERIMENTS.values() for name in experiment.rows} <= rows


def test_links_of_other_documents_lead_to_pages() -> None:
    """And to no section of the index, which has none to link to."""
    for name in ("README.md", "envs/README.md", "agent/README.md", "graphs/io/README.md"):
        for target in links(ROOT / name):
            file, _, section = target.partition("#")
            if "lab/" in file:
                assert (ROOT / name).parent.joinpath(file).exists(), f"{name}: {target}"
                assert not section, f"{name}: {target}"
