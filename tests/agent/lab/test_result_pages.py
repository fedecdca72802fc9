"""Pages of results: short, with rows beside them, and no number that their command does not print."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from agent.lab.command import main
from agent.lab.equal_time.budgets import BudgetRow
from agent.lab.experiment import EXPERIMENTS, RESULTS, ExperimentError
from agent.lab.recorded.orders import holm
from agent.lab.recorded.placers import SAME_STEP
from agent.lab.rows import read_rows, read_table

ROOT = Path(__file__).parents[3]
INDEX, HISTORY = RESULTS.parent / "RESULTS.md", RESULTS.parent / "HISTORY.md"
FILES = sorted(RESULTS.glob("*.md"))
TEXTS = [INDEX, HISTORY, *FILES]
WITH_TABLES = [path for path in FILES if path.stem != "negatives"]
MAX_WORDS = 500
MAX_TABLES = 2
DECIMAL = re.compile(r"\d+\.\d+%?")
HEADS = ("**Question.**", "**Set-up.**", "**Result.**", "**Conclusion.**", "**Commands.**")
COMMAND, TABLES = "python -m agent.lab ", " --only tables"


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def without_code(text: str) -> str:
    return re.sub(r"^```\n.*?^```$", "", text, flags=re.M | re.S)


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def prose(path: Path) -> str:
    return "\n".join(line for line in without_code(read(path)).splitlines() if not line.startswith("|"))


def links(path: Path) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)]+)\)", read(path)) if "://" not in target]


def code_lines(path: Path) -> list[str]:
    return [
        line
        for block in re.findall(r"^```\n(.*?)^```$", read(path), re.M | re.S)
        for line in block.splitlines()
    ]


def printed_by(path: Path, capsys: pytest.CaptureFixture[str]) -> str:
    """What the command of a page prints."""
    (command,) = [line for line in code_lines(path) if line.startswith(COMMAND) and line.endswith(TABLES)]
    capsys.readouterr()
    assert main(shlex.split(command.removeprefix(COMMAND))) == 0
    return capsys.readouterr().out


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


@pytest.mark.parametrize("path", WITH_TABLES, ids=lambda path: path.stem)
def test_every_number_of_a_page_is_printed_by_its_command(
    path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table lines as they are; of the text, numbers with a point, but for those of the set-up."""
    printed = printed_by(path, capsys)
    known = set(table_lines(printed))
    for line in table_lines(read(path)):
        assert line in known
    setup, result = prose(path).split("**Result.**")
    question = setup.split("**Set-up.**")[0]
    found = re.sub(r"\]\([^)]+\)", "]", question + result)
    unknown = set(DECIMAL.findall(found)) - set(DECIMAL.findall(printed))
    assert not unknown
    (row,) = [line for line in table_lines(read(INDEX)) if f"results/{path.name}" in line]
    assert not set(DECIMAL.findall(row)) - set(DECIMAL.findall(printed))


def test_every_page_is_an_experiment_with_rows_and_a_line_of_the_index() -> None:
    with_page = {name for name, each in EXPERIMENTS.items() if (RESULTS / each.rows[0]).exists()}
    assert {path.stem for path in WITH_TABLES} == with_page
    assert all(f"results/{path.name}" in links(INDEX) for path in FILES)


def test_every_file_of_rows_belongs_to_a_page() -> None:
    named = {(path.parent / target).resolve() for path in TEXTS for target in links(path)}
    rows = {path for path in RESULTS.iterdir() if path.suffix != ".md"}
    assert rows
    assert rows <= named


def test_commands_of_pages_name_modules_and_experiments_that_exist() -> None:
    named = {
        words
        for path in FILES
        for line in code_lines(path)
        for words in re.findall(r"python -m (\S+)(?: ([a-z_]+))?", line)
    }
    assert named
    for name, experiment in named:
        path = ROOT / name.replace(".", "/")
        assert (path / "__main__.py").exists() or path.with_suffix(".py").exists(), name
        assert name != COMMAND.split()[2] or experiment in EXPERIMENTS


def test_links_of_other_documents_lead_to_pages() -> None:
    """And to no section of the index, which has none to link to."""
    for path in (
        ROOT / name for name in ("README.md", "envs/README.md", "agent/README.md", "graphs/io/README.md")
    ):
        for target in links(path):
            file, _, section = target.partition("#")
            if "lab/" in file:
                assert (path.parent / file).exists(), f"{path}: {target}"
                assert not section, f"{path}: {target}"


def test_no_placer_beats_an_optimum_and_no_bound_is_above_one() -> None:
    rows = read_table(RESULTS / "optimality.csv")
    assert min(row["found"] for row in rows) >= 1 - SAME_STEP
    assert max(row["bound"] for row in rows) <= 1 + SAME_STEP


def test_p_values_are_corrected_for_their_number_as_holm_does() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([]) == []


def test_damaged_rows_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_table(tmp_path / "none.csv")
    (tmp_path / "finetuning.csv").write_text("graph,placed_by,seconds\na,b,1\n")
    assert main(["finetuning", "--only", "tables", "--out", str(tmp_path)]) == 2
    assert "the rows have no column 'ratio_to_single'" in capsys.readouterr().err
    with pytest.raises(ExperimentError, match="holds no rows of BudgetRow \\('family'\\)"):
        read_rows(tmp_path / "finetuning.csv", BudgetRow)


def test_cells_are_read_as_what_they_look_like(tmp_path: Path) -> None:
    (tmp_path / "any.csv").write_text("a,b,c,d,e,f\nx,,1,0.5,True,False\n")
    assert read_table(tmp_path / "any.csv") == [
        {"a": "x", "b": None, "c": 1, "d": 0.5, "e": True, "f": False}
    ]
