"""The table of versions is what `make versions` found, and all that is supported is in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from graphs.capture.tracing import TESTED_TORCH
from tests import versions
from tests.versions import FIRST, LAST, PAIRS, Result

GOOD = Result("2.15.0", "3.12", "2.15.0+cu132", "abc1234", "2026-11-26", versions.TESTS, passed=5, skipped=1)
JUNIT = """<testsuites><testsuite>
<testcase classname="tests.a" name="test_good"/>
<testcase classname="tests.a" name="test_bad"><failure message="no"/></testcase>
<testcase classname="tests.a" name="test_left"><skipped message="why"/></testcase>
</testsuite></testsuites>"""


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
    bad = replace(GOOD, torch="2.9.0", passed=0, failed=("tests.a::test_bad",))
    for result in (replace(GOOD, passed=1), bad, GOOD):
        found = versions.keep(result, path)
    assert versions.read_results(path) == [
        replace(each, tests=list(each.tests), failed=list(each.failed)) for each in (GOOD, bad)
    ]
    versions.write_table(found, page)
    text = page.read_text()
    assert text.startswith(f"before\n{FIRST}\n| torch |")
    assert text.endswith(f"{LAST}\nafter\n")
    assert "| 2.15.0+cu132 | 3.12 | 5 passed, 1 skipped | abc1234 | 2026-11-26 |" in text
    assert "| 2.15.0+cu132 | 3.12 | 1 failed, 1 skipped |" in text
    assert "| 2.13.0 | 3.13 | not run |  |  |" in text
    assert "old" not in text
    part = replace(GOOD, tests=("tests/graphs/capture",))
    assert part.words == "5 passed, 1 skipped (of tests/graphs/capture alone)"


def test_a_report_is_counted(tmp_path: Path) -> None:
    path = tmp_path / "report.xml"
    path.write_text(JUNIT)
    assert versions.read_junit(path) == {"passed": 1, "skipped": 1, "failed": ["tests.a::test_bad"]}


def test_a_python_that_is_not_here_is_said(tmp_path: Path) -> None:
    found = versions.run_pair("2.15.0", "3.99", tmp_path / "none", versions.TESTS)
    assert found.failure == "no Python 3.99 here"
    assert found.words == found.failure


def test_a_pair_runs_the_tests_in_its_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "torch"
    (folder / "bin").mkdir(parents=True)
    script = folder / "bin" / "python"
    script.write_text(
        f'#!/bin/sh\ncase "$*" in *junitxml*) cat > {folder}/report.xml <<END\n{JUNIT}\nEND\n;; '
        "*) echo 2.15.0+x;; esac\n"
    )
    script.chmod(0o755)
    found = versions.run_pair("2.15.0", "3.11", folder, ("tests/a",))
    assert (found.installed, found.passed, found.skipped) == ("2.15.0+x", 1, 1)
    assert list(found.failed) == ["tests.a::test_bad"]
