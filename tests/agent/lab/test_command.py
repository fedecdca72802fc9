"""The command of the lab: what it lists, what it runs, and what wrong input is told."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agent.lab.__main__ import FLAGS, main
from agent.lab.questions import EXPERIMENTS
from tests.test_imports import HEAVY

ROOT = Path(__file__).parents[3]


@pytest.mark.parametrize("words", [[], ["--help"]], ids=["no words", "help"])
def test_all_experiments_are_listed_and_nothing_heavy_is_loaded(words: list[str]) -> None:
    code = (
        "import sys; from agent.lab.__main__ import main; main(sys.argv[1:]); print('loaded', *sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    *lines, loaded = done.stdout.splitlines()
    assert not {*loaded.split()} & {*HEAVY}
    for name, experiment in EXPERIMENTS.items():
        assert sum(line.split() == [name, *experiment.question.split()] for line in lines) == 1


def test_declarations_are_short() -> None:
    text = (ROOT / "agent" / "lab" / "questions.py").read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 60 + 45 * len(EXPERIMENTS)


def test_every_setting_is_a_flag_and_every_quick_run_has_settings() -> None:
    settings: set[str] = set()
    for experiment in EXPERIMENTS.values():
        assert "\n" not in experiment.question
        settings |= vars(experiment.run).keys()
        run: Any = experiment.run
        assert replace(run, **experiment.quick) != run
    assert set(FLAGS) == settings


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nix", "unknown experiment 'nix'; use one of benchmark, "),
        ("optimality --only tables", "optimality: is settled; "),
        ("budgets --only tables --out .", ".: has no budgets.csv.gz; run "),
        ("budgets --placers nix", "unknown placer 'nix'; use memory-fill"),
        ("benchmark --placers nix", "unknown placer 'nix'; use some of memory-fill"),
        ("benchmark --graphs nix", "no instance is named 'nix'"),
        ("benchmark --graphs piper:resnet --placers heft", "none of the placers suits these instances"),
    ],
)
def test_wrong_input_is_one_line(
    words: str,
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words.split()) == 2
    assert f"agent.lab: {message}" in capsys.readouterr().err.splitlines()[-1]


@pytest.mark.parametrize("words", ["budgets --seeds -1", "budgets --budget many", "budgets --only rows"])
def test_a_wrong_flag_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(words.split())
    assert capsys.readouterr().err.count("\n") == 1
