"""The documentation builds strictly, knows every flag, is short, and its commands are accepted."""

from __future__ import annotations

import re
import resource
import shlex
import subprocess
import sys
from html import unescape
from pathlib import Path

import pytest

from agent.commands import evaluate_flags, train_flags
from tests.sources import ROOT
from tests.test_readme import blocks

PARSERS = {"evaluate.py": evaluate_flags.make_parser(), "train_agent.py": train_flags.make_parser()}
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MAPS = ("agent", "envs", "graphs/io")
"""Folders whose README is a map of links."""
READMES = [ROOT / name / "README.md" for name in (*MAPS, "agent/instances", "tests/golden", "runs", "")]
MOST_WORDS, MOST_OF_A_MAP = 20_150, 400
MOST_SECONDS = 45
"""Of the processor; a build takes a dozen on a quiet machine."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--site-dir", folder],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, f"pip install -e '.[docs]' installs mkdocs\n{done.stdout}{done.stderr}"
    assert resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime - before < MOST_SECONDS
    return folder


def test_every_flag_is_on_the_page_of_flags(site: Path) -> None:
    page = unescape((site / "reference/flags.html").read_text(encoding="utf-8"))
    flags = {flag for parser in PARSERS.values() for flag in parser._option_string_actions}
    assert {flag for flag in flags if f"<code>{flag}</code>" not in page} == {"-h", "--help"}


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for path in site.rglob("*.html"):
        text = path.read_text(encoding="utf-8")
        assert not re.search(r"<(?:script|link|img|iframe)[^>]*(?:src|href)=\"(?:https?:)?//", text), path


def test_documents_are_short() -> None:
    documents = [*READMES, ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *PAGES]
    n_words = [len(path.read_text(encoding="utf-8").split()) for path in documents]
    assert sum(n_words) <= MOST_WORDS
    assert max(n_words[: len(MAPS)]) <= MOST_OF_A_MAP


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.stem)
def test_commands_are_accepted(path: Path) -> None:
    for block in blocks(path.read_text(encoding="utf-8"), ""):
        for line in block.replace("\\\n", " ").splitlines():
            command, _, flags = line.partition(".py ")
            parser = PARSERS.get(f"{command.rpartition(' ')[2]}.py")
            if parser is not None and "--print-cluster" not in line:
                assert parser.parse_args(shlex.split(flags))


def test_the_first_snippet_runs() -> None:
    found: dict[str, object] = {}
    exec(blocks((ROOT / "docs/index.md").read_text(encoding="utf-8"), "python")[0], found)
    assert found["plan"]
