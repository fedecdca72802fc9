"""The command of all experiments: what it lists, what it runs, and what wrong input is told."""

from __future__ import annotations

import inspect
import subprocess
import sys
from pathlib import Path

import pytest

from agent.lab.command import FLAGS, main
from agent.lab.experiment import EXPERIMENTS, loaded

ROOT = Path(__file__).parents[3]
QUESTIONS = sorted((ROOT / "agent" / "lab" / "questions").glob("*.py"))


@pytest.mark.parametrize("words", [[], ["--help"]], ids=["no words", "help"])
def test_all_experiments_are_listed_and_nothing_heavy_is_loaded(words: list[str]) -> None:
    code = (
        "import sys; from agent.lab.command import main; main(sys.argv[1:]); "
        "print('loaded', *sys.modules.keys() & {'numpy', 'numba', 'torch', 'matplotlib', 'scipy'})"
    )
    done = subprocess.run([sys.executable, "-c", code, *words], cwd=ROOT, capture_output=True, text=True)
    *lines, heavy = done.stdout.splitlines()
    assert heavy == "loaded"
    for name, experiment in EXPERIMENTS.items():
        assert sum(line.split() == [name, *experiment.question.split()] for line in lines) == 1


@pytest.mark.parametrize("path", QUESTIONS, ids=lambda path: path.stem)
def test_declarations_are_short(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 60


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_a_declaration_names_functions_that_take_its_settings(name: str) -> None:
    experiment = EXPERIMENTS[name]
    inspect.signature(loaded(experiment.tables)).bind(*experiment.rows, **experiment.fixed)
    if experiment.run:
        inspect.signature(loaded(experiment.run)).bind(Path(), **experiment.settings, **experiment.fixed)
    assert set(experiment.quick) <= set(experiment.settings) <= set(FLAGS)
    assert "\n" not in experiment.question


def test_every_flag_is_of_an_experiment() -> None:
    assert set(FLAGS) == {flag for experiment in EXPERIMENTS.values() for flag in experiment.settings}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("nix", "unknown experiment 'nix'; use one of benchmark, "),
        ("speed", "speed: its rows were made elsewhere, see "),
        ("optimality", "optimality: its rows were made elsewhere, see "),
        ("bounds --only tables --out .", ".: has no bounds_op.csv or "),
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
    error = capsys.readouterr().err
    assert error.startswith(f"agent.lab: {message}")
    assert error.count("\n") == 1


@pytest.mark.parametrize("words", ["budgets --seeds -1", "budgets --seeds many", "bounds --only rows"])
def test_a_wrong_flag_is_one_line(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words.split())
    assert left.value.code == 2
    assert capsys.readouterr().err.count("\n") == 1
