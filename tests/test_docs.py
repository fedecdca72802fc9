"""The documentation builds strictly, knows flags and versions, and is short; commands and examples run."""

from __future__ import annotations

import re
import resource
import shlex
import sys
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import torch

from agent.commands import evaluate_flags, train_flags
from agent.policy.policy import torch_threads
from agent.policy.serialization import load_policy
from envs.placement.observation.features import DEVICE_FEATURES
from envs.simulator.simulate import simulate_problem
from graphs.capture.tracing import TESTED_TORCH
from tests import versions
from tests.sources import ROOT, output_of
from tests.test_readme import blocks
from tests.versions import FIRST, LAST, PAIRS, Result

PARSERS = {"evaluate.py": evaluate_flags.make_parser(), "train_agent.py": train_flags.make_parser()}
PAGES = sorted((ROOT / "docs").rglob("*.md"))
MAPS = ("agent", "envs", "graphs/io")
"""Folders whose README is a map of links."""
READMES = [ROOT / name / "README.md" for name in (*MAPS, "agent/instances", "tests/golden", "runs", "")]
MOST_WORDS, MOST_OF_A_MAP = 20_150, 400
MOST_SECONDS = 45
"""Of the processor; a build takes a dozen on a quiet machine."""
WALK, SCRIPTS, RUNS = (
    (ROOT / "docs" / name).read_text(encoding="utf-8")
    for name in ("explanation/walk.md", "how-to/environment.md", "how-to/run.md")
)
EXAMPLES = blocks(RUNS + SCRIPTS, "python")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    before = resource.getrusage(resource.RUSAGE_CHILDREN).ru_utime
    output_of([sys.executable, "-m", "mkdocs", "build", "--site-dir", folder])
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


def test_the_table_lists_every_feature() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \| ([^|]+) \| ([^|]+) \|$", WALK, flags=re.MULTILINE)
    declared = [(feature.name, feature.group, feature.unit) for feature in DEVICE_FEATURES]
    assert [(name, group, unit) for name, group, unit, _ in rows] == declared


def test_the_example_runs(capsys: pytest.CaptureFixture[str]) -> None:
    example = EXAMPLES[-1]
    short, n = re.subn(r"n_steps=\d+, (.*)learn\([\d_]+\)", r"n_steps=64, \1learn(64)", example)
    assert n == 1
    names: dict[str, object] = {}
    n_threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        exec(short, names)
        assert torch.get_num_threads() == 1, "more threads take several times as long"
    finally:
        torch.set_num_threads(n_threads)
    model = names["model"]
    assert model.num_timesteps == 64
    result = names["info"]["result"]  # type: ignore[index]
    assert float(capsys.readouterr().out.splitlines()[-1]) == result.ratio_to_single
    problem = names["problems"][0]  # type: ignore[index]
    assert result.step_time_s == simulate_problem(problem, result.device_of).total_s


def test_the_example_of_sb3_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    example = next(each for each in EXAMPLES if "PlacementPPO" in each)
    short, n = re.subn(
        r"n_steps=256(.*)learn\(20_000(.*)eval_freq=256",
        r"n_steps=8\1learn(128\2eval_freq=8",
        example,
        flags=re.S,
    )
    names: dict[str, object] = {}
    with torch_threads(1):
        exec(short, names)
    assert n == 1
    assert names["model"].num_timesteps == 128  # type: ignore[attr-defined]
    assert load_policy("my_policy").network


def test_the_placed_module_trains() -> None:
    names: dict[str, object] = {}
    exec(next(example for example in EXAMPLES if "plan.compile" in example), names)
    assert isinstance(names["loss"], torch.Tensor)
    assert names["runner"].n_steps == 10  # type: ignore[attr-defined]


GOOD = Result("2.15.0", "3.12", "2.15.0+cu132", "abc1234", "2026-11-26", "5 passed, 1 skipped", is_whole=True)


def test_the_table_of_versions_is_that_of_the_results() -> None:
    page = versions.PAGE.read_text()
    between = page.split(FIRST)[1].split(LAST)[0]
    assert between.strip().splitlines() == versions.table(versions.read_results())


def test_supported_versions_are_those_that_are_tried() -> None:
    tried = sorted({torch.rpartition(".")[0] for torch, _ in PAIRS})
    assert sorted(TESTED_TORCH) == tried
    project = (ROOT / "pyproject.toml").read_text()
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
