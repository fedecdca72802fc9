"""Settings: fields that become flags and JSON keys, checked in one place."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

import pytest

from graphs.system.settings import Settings, add_flags, option


class PlantError(ValueError):
    """Settings that no plant grows by."""


@dataclass(frozen=True)
class Plant(Settings, error=PlantError):
    """One field of every kind."""

    names: tuple[str, ...] = option((), "what to call it", group="first", metavar="WORD")
    light: tuple[str, ...] | None = option(
        None, "when", group="first", choices=("day", "night"), default_text="always"
    )
    height: float = option(1.0, "in metres, 100 % of it", group="second", above=0, most=90)
    leaves: int | None = option(None, "how many", group="second", least=1)
    kind: str = option("tree", "what it is", group="first", choices=("tree", "herb"))
    evergreen: bool = option(False, "keeps its leaves", group="second")


def parse(*words: str) -> Plant:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    add_flags(parser, Plant)
    return Plant.from_json(vars(parser.parse_args(words)), "command line")


def test_flags_make_settings() -> None:
    assert parse() == Plant()
    words = ["--names", "a", "b", "--light", "night", "--height", "2", "--leaves", "3"]
    words += ["--kind", "herb", "--evergreen"]
    expected = Plant(("a", "b"), ("night",), 2.0, 3, "herb", evergreen=True)
    assert parse(*words) == expected
    assert Plant.from_json(expected.to_json(), "file") == expected


def test_help_shows_groups_choices_and_defaults() -> None:
    parser = argparse.ArgumentParser(argument_default=argparse.SUPPRESS)
    groups = add_flags(parser, Plant)
    assert list(groups) == ["first", "second"]
    shown = parser.format_help()
    for text in (
        "WORD [WORD ...]",
        "day|night",
        "(default: always)",
        "100 % of it (default: 1.0)",
        "tree|herb",
    ):
        assert text in shown
    assert re.search(r"--evergreen +keeps its leaves\n", shown)


def test_values_over_a_base_keep_the_rest() -> None:
    base = Plant(names=("a",), leaves=3)
    assert Plant.from_json({"leaves": None, "height": 3}, "file", base) == Plant(names=("a",), height=3.0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (3, "file: holds int, not an object of settings"),
        ({"colour": "red"}, "file: unknown key 'colour'; use names, light, height, leaves, kind, evergreen"),
        ({"height": 0}, "file: height is 0.0; use more than 0"),
        ({"height": float("inf")}, "file: height is inf; use a finite number"),
        ({"height": 91}, "file: height is 91.0; use at most 90"),
        ({"leaves": 0}, "file: leaves is 0; use at least 1"),
        ({"leaves": True}, "file: leaves is True; use a whole number"),
        ({"names": None}, "file: names is None; use a list of strings"),
        ({"light": ["noon"]}, "file: light is 'noon'; use day or night"),
        ({"kind": "fern"}, "file: kind is 'fern'; use tree or herb"),
        ({"evergreen": 1}, "file: evergreen is 1; use true or false"),
    ],
)
def test_bad_values_are_one_line(values: object, message: str) -> None:
    with pytest.raises(PlantError) as caught:
        Plant.from_json(values, "file")
    assert str(caught.value) == message
