"""The table of versions is what `make versions` found, and all that is supported is in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from graphs.capture.tracing import TESTED_TORCH
from tests import versions
from tests.versions import FIRST, LAST, PAIRS, Result

GOOD = Result("2.15.0", "3.12", "2.15.0+cu132", "abc1234", "2026-11-26", "5 passed, 1 skipped", is_whole=True)


def test_the_page_has_the_table_of_the_results() -> None:
    page = versions.PAGE.read_text()
    between = page.split(FIRST)[1].split(LAST)[0]
    assert between.strip().splitlines() == versions.table(versions.read_results())


def test_supported_versions_are_those_that_are_tried() -> None:
    tried = sorted({torch.rpartition(".")[0] for torch, _ in PAIRS})
    assert sorted(TESTED_TORCH) == tried
    project = (versions.ROOT / "pyproject.toml").read_text()
    found = re.search(r'"torch>=2\.(\d+),<2\.(\d+)"', project)
    assert found is not None
    assert [f"2.{minor}" for minor in range(int(found[1]), int(found[2]))] == tried


def test_results_are_kept_and_written(tmp_path: Path) -> None:
    path, page = tmp_path / "versions.json", tmp_path / "page.md"
    page.write_text(f"before\n{FIRST}\nold\n{LAST}\nafter\n")
    bad = replace(GOOD, torch="2.9.0", words="1 failed, 1 skipped", is_whole=False)
    for result in (replace(GOOD, words="1 passed"), bad, GOOD):
        found = versions.keep(result, path)
    assert versions.read_results(path) == [GOOD, bad]
    versions.write_table(found, page)
    text = page.read_text()
    assert text.startswith(f"before\n{FIRST}\n| torch |")
    assert text.endswith(f"{LAST}\nafter\n")
    assert "| 2.15.0+cu132 | 3.12 | 5 passed, 1 skipped | abc1234 | 2026-11-26 |" in text
    assert "| 2.15.0+cu132 | 3.12 | 1 failed, 1 skipped |" in text
    assert "\n\nNot run: 2.15.0:3.13, " in text
    assert "old" not in text


def test_a_python_that_is_not_here_is_said(tmp_path: Path) -> None:
    found = versions.run_pair("2.15.0", "3.99", tmp_path / "none", versions.TESTS)
    assert (found.words, found.is_whole) == ("no Python 3.99 here", False)


@pytest.mark.parametrize(
    ("tests", "words"), [(versions.TESTS, "5 passed"), (("tests/a",), "5 passed (of tests/a alone)")]
)
def test_a_pair_runs_the_tests_in_its_environment(tmp_path: Path, tests: tuple[str, ...], words: str) -> None:
    folder = tmp_path / "torch"
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "python"
    script.write_text(
        '#!/bin/sh\ncase "$*" in *pytest*) echo "5 passed in 3.0s" ;; *) echo 2.15.0+x ;; esac\n'
    )
    script.chmod(0o755)
    found = versions.run_pair("2.15.0", "3.11", folder, tests)
    assert (found.installed, found.words, found.is_whole) == ("2.15.0+x", words, tests == versions.TESTS)
