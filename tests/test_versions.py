"""The table of versions is what `make versions` found, and all that is supported is in it."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

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
