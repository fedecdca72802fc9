"""The scripts of examples/ run in fresh processes with small budgets, and end in a picture that they name."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.sources import ROOT, output_of

FOLDER = ROOT / "examples"
LONGEST, SECOND_LONGEST, MOST_LINES = 250, 120, 560
SCRIPTS = {
    "place_my_model": ("--layers 2 --seconds 1", r"before: ([\d.]+) s, after: ([\d.]+) s"),
    "pipeline_on_unequal_gpus": ("--steps 2 --seconds 0.5", r"of the pipeline (\S+), of the module (\S+)"),
    "train_a_policy": ("--timesteps 2000", r"training, .* ([\d.]+) of one device"),
    "my_order_and_placer": ("--graphs 1 --budget 500", r"([\d.]+) of one device"),
    "published_instance": ("--seconds 0.5", r"([\d.]+) of the bound"),
    "ppo_placement": ("--timesteps 80000", r"decisions, +\d+ s: ([\d.]+)"),
}
"""Flags of a small budget, and a pattern of the numbers that are printed."""


def holds(name: str, numbers: list[float]) -> bool:
    """Says whether the numbers that a script printed are as its docstring has it."""
    if name == "pipeline_on_unequal_gpus":
        return numbers[::2] == pytest.approx(numbers[1::2], rel=1e-4, abs=1e-5) and len(numbers) == 4
    if name == "my_order_and_placer":
        return len(numbers) == 7 and 0 < min(numbers) == min(numbers[-2:])
    falling = numbers == sorted(numbers, reverse=True)
    learned = 0 < numbers[-1] < numbers[0]
    return learned if name == "ppo_placement" else learned and falling


def test_the_scripts_are_short_and_listed() -> None:
    lines = {path.stem: len(path.read_text().splitlines()) for path in FOLDER.glob("*.py")}
    text = (FOLDER / "README.md").read_text()
    assert lines.keys() == SCRIPTS.keys() == set(re.findall(r"\]\((\w+)\.py\)", text))
    *others, longest = sorted(lines.values())
    assert max(others) <= SECOND_LONGEST
    assert longest <= LONGEST
    assert sum(lines.values()) + len(text.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_keeps_its_promise(name: str, tmp_path: Path) -> None:
    flags, pattern = SCRIPTS[name]
    command: list[str | Path] = [sys.executable, FOLDER / f"{name}.py", *flags.split(), "--out", tmp_path]
    printed = output_of(command, tmp_path)
    found = [each if isinstance(each, tuple) else (each,) for each in re.findall(pattern, printed)]
    assert holds(name, [float(number) for each in found for number in each]), printed
    picture = Path(re.findall(r"^saved (.*)$", printed, flags=re.M)[-1])
    assert picture.parent == tmp_path
    root = ElementTree.parse(picture).getroot()
    assert root.tag.endswith("svg")
    assert len(list(root.iter())) > 50
    assert 5_000 < picture.stat().st_size < 1_000_000
