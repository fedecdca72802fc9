"""Pages of results: short, with rows beside them, and no number that their command does not print."""

from __future__ import annotations

import math
import re
from pathlib import Path

import pytest

from agent.lab.__main__ import main
from agent.lab.pivot import ExperimentError, Row, over, read_table, write_rows
from agent.lab.questions import EXPERIMENTS, RESULTS

ROOT = Path(__file__).parents[3]
INDEX, HISTORY = RESULTS.parent / "RESULTS.md", RESULTS.parent / "HISTORY.md"
FILES = sorted(RESULTS.glob("*.md"))
WITH_TABLES = [path for path in FILES if path.stem != "negatives"]
FROZEN = [path for path in WITH_TABLES if path.stem not in EXPERIMENTS]
READMES = ("README.md", "envs/README.md", "agent/README.md", "graphs/io/README.md")
DOCUMENTS = [*(ROOT / name for name in READMES), *sorted((ROOT / "docs").rglob("*.md"))]
DECIMAL = re.compile(r"\d+\.\d+%?")
HEADS = ("**Question.**", "**Set-up.**", "**Result.**", "**Conclusion.**", "**Commands.**")
BLOCK = re.compile(r"^```\n(.*?)^```$", re.M | re.S)


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8")


def table_lines(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("|")]


def prose(path: Path) -> str:
    return "\n".join(line for line in BLOCK.sub("", read(path)).splitlines() if not line.startswith("|"))


def links(path: Path) -> list[str]:
    return [target for target in re.findall(r"\]\(([^)]+)\)", read(path)) if "://" not in target]


def commands(path: Path) -> list[str]:
    return [line for block in BLOCK.findall(read(path)) for line in block.splitlines()]


@pytest.mark.parametrize("path", [INDEX, HISTORY, *FILES, *DOCUMENTS], ids=lambda path: path.stem)
def test_links_lead_to_pages_and_not_to_sections_of_them(path: Path) -> None:
    for target in links(path):
        file, _, section = target.partition("#")
        if path not in DOCUMENTS or "lab/" in file:
            assert (path.parent / file).exists(), target
            assert not section, f"{target}: link to a page, not to a section"


@pytest.mark.parametrize("path", WITH_TABLES, ids=lambda path: path.stem)
def test_a_page_is_short_and_has_all_parts_in_order(path: Path) -> None:
    max_words, max_tables = (2_100, 9) if path.stem == "order" else (500, 2)
    assert len(prose(path).split()) <= max_words
    places = [read(path).find(f"\n{head}") for head in HEADS]
    assert -1 not in places
    assert places == sorted(places)
    assert 1 <= sum(line.startswith("| ---") for line in table_lines(read(path))) <= max_tables
    assert any(".csv" in target for target in links(path)), "the page names no rows"
    assert f"results/{path.name}" in links(INDEX)


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_number_of_a_page_is_printed_by_its_command(
    name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Table lines as they are; of the text, numbers with a point, but for those of the set-up."""
    path = RESULTS / f"{name}.md"
    assert f"python -m agent.lab {name} --only tables" in commands(path)
    capsys.readouterr()
    assert main([name, "--only", "tables"]) == 0
    printed = capsys.readouterr().out
    assert not {*table_lines(read(path))} - {*table_lines(printed)}
    setup, result = prose(path).split("**Result.**")
    text = re.sub(r"\]\([^)]+\)", "]", setup.split("**Set-up.**")[0] + result)
    (row,) = [line for line in table_lines(read(INDEX)) if f"results/{name}.md" in line]
    assert not {*DECIMAL.findall(text), *DECIMAL.findall(row)} - {*DECIMAL.findall(printed)}


@pytest.mark.parametrize("path", FROZEN, ids=lambda path: path.stem)
def test_a_frozen_page_names_the_commit_at_which_its_tables_are_printed(path: Path) -> None:
    tables = re.compile(
        rf"python -m agent\.(?:experiments|lab) {path.stem} --only tables  # at ([0-9a-f]{{7}})"
    )
    (commit,) = [found[1] for line in commands(path) if (found := tables.fullmatch(line))]
    assert f"Settled: commands marked `# at {commit}` run at that commit." in prose(path)
    assert not [line for line in commands(path) if line.startswith("python -m agent.lab") and "#" not in line]


def test_every_file_of_rows_belongs_to_a_page() -> None:
    named = {(path.parent / target).resolve() for path in FILES for target in links(path)}
    files = {path for path in RESULTS.iterdir() if path.suffix != ".md"}
    assert {RESULTS / experiment.rows for experiment in EXPERIMENTS.values()} <= files <= named


def steps(placer: str, *steps_s: float, cluster: str = "c", cpu_s: float = 1.0) -> list[Row]:
    row = {"placer": placer, "family": "f", "cluster": cluster, "granularity": "op", "seed": 0}
    row |= {"seconds": 1.0, "cpu_s": cpu_s}
    return [{**row, "graph": f"g{at}", "step_s": step_s} for at, step_s in enumerate(steps_s)]


def test_a_placer_that_does_not_keep_the_budget_everywhere_is_not_compared() -> None:
    rows = [*steps("auto", 1.0, 2.0), *steps("refine", 2.0, 2.0), *steps("rollout", 1.0, 1.0)]
    late = [*rows[:-1], *steps("rollout", 1.0, 1.0, cpu_s=1.2)[1:]]
    assert over("auto", "refine", "rollout")(rows).endswith("rollout")
    assert over("auto", "refine", "rollout")(late).endswith("refine")


def test_rows_are_read_as_what_they_look_like(tmp_path: Path) -> None:
    rows = [{"a": "x", "b": None, "c": 1, "d": 0.1, "e": True, "f": math.inf}] * 2
    for name in ("any.csv", "any.csv.gz"):
        write_rows(tmp_path / "new" / name, rows)
        assert read_table(tmp_path / "new" / name) == rows
    with pytest.raises(ExperimentError, match="there are no rows to write"):
        write_rows(tmp_path / "none.csv", [])
    with pytest.raises(ExperimentError, match="cannot be read"):
        read_table(tmp_path / "none.csv")


def test_rows_of_another_table_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_rows(tmp_path / EXPERIMENTS["budgets"].rows, [{"kind": "a", "s": 1.0}])
    assert main(["budgets", "--only", "tables", "--out", str(tmp_path)]) == 2
    assert "the rows have no column 'seconds'" in capsys.readouterr().err
