"""The journeys in CONTRIBUTING.md can be followed from file to file, and are short."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
ROW = re.compile(r"^\| (.+) \| (\d+) \| (`[\w/]+\.py`(?:, `[\w/]+\.py`)+) \|$", re.MULTILINE)
JOURNEYS = {
    what: (int(count), re.findall(r"`([\w/]+\.py)`", files))
    for what, count, files in ROW.findall((ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"))
}
MOST = {
    "`evaluate.py --model` to a row of `results.csv`": 20,
    "flags of `train_agent.py` to a saved policy": 17,
    "an action of the environment to its reward": 9,
}
"""The most files that a journey may have."""


def dotted(file: str) -> str:
    return file.removesuffix(".py").replace("/", ".")


def names(text: str, file: str) -> bool:
    """Whether a text imports a module, or names it for a registry by the end of its dotted name."""
    package, _, module = dotted(file).rpartition(".")
    forms = (
        rf"from {re.escape(package)} import .*\b{module}\b",
        rf"(?:from|import) {re.escape(dotted(file))} ",
        rf'"{re.escape(".".join(dotted(file).split(".")[-2:]))}"',
    )
    return any(re.search(form, text) for form in forms)


def test_all_journeys_are_told() -> None:
    assert JOURNEYS.keys() == MOST.keys()


@pytest.mark.parametrize("what", MOST)
def test_a_journey_is_short_and_goes_on_from_a_file_before(what: str) -> None:
    count, files = JOURNEYS[what]
    assert count == len(set(files)) == len(files) <= MOST[what]
    seen = ""
    for place, file in enumerate(files):
        assert place == 0 or names(seen, file), f"no file before {file} imports it"
        seen += (ROOT / file).read_text(encoding="utf-8")
