"""Settings become flags and JSON keys; messages and numbers are as people read them."""

from __future__ import annotations

import argparse
import re
from dataclasses import dataclass

import pytest

from graphs.system.errors import InputError, printable, shortened, shown
from graphs.system.numbers import four_digits, in_ms
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


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("graph 'é': 日本", "graph 'é': 日本"),
        ("two\nlines\r", "two\\nlines\\r"),
        ("\x1b[31mred\x07", "\\x1b[31mred\\x07"),
        ("\u2028 and \udcff", "\\u2028 and \\udcff"),
    ],
)
def test_what_cannot_be_printed_is_escaped(raw: str, shown: str) -> None:
    assert printable(raw) == shown
    assert str(InputError(raw)) == shown
    assert shown.isprintable()


LONG = "x" * 2_500 + "y" * 2_500
SHORT = f"{'x' * 38}[...]{'y' * 37}"


@pytest.mark.parametrize(
    ("raw", "said"),
    [
        (
            f"op 'a', graph '{LONG}': device \"{LONG}\" is full",
            f"op 'a', graph '{SHORT}': device \"{SHORT}\" is full",
        ),
        (f"('{'a name ' * 100}')", f"('{shortened('a name ' * 100)}')"),
        (f"'a (b)' is {'not so ' * 20}'(c)'", f"'a (b)' is {'not so ' * 20}'(c)'"),
        (f"the module's {'name ' * 30} 'a'", f"the module's {'name ' * 30} 'a'"),
        (f"/{LONG}: no such file", f"{shortened(f'/{LONG}:', 250)} no such file"),
        (f"use {'a, ' * 2_000}or b", shortened(f"use {'a, ' * 2_000}or b", 1000)),
    ],
)
def test_names_that_are_long_are_shortened(raw: str, said: str) -> None:
    assert shown(raw) == said
    assert str(InputError(raw)) == said
    assert shown(said) == said
    assert len(said) <= 1000


@pytest.mark.parametrize("piece", [" 'a", "'a' ", "'", "\"'", "\x00"])
def test_a_message_of_any_length_is_shortened_at_once(piece: str) -> None:
    """In time that grows with its length alone; else this would take hours."""
    assert len(shown(piece * 300_000)) <= 1000


@pytest.mark.parametrize("limit", [20, 21, 80])
def test_a_shortened_text_keeps_both_ends(limit: int) -> None:
    assert shortened("a" * limit, limit) == "a" * limit
    cut = shortened(f"begin{'-' * limit}end", limit)
    assert len(cut) == limit
    assert cut.startswith("begin-")
    assert cut.endswith("-end")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03, "0.03"), (62.104, "62.1"), (999.94, "999.9"), (1016.2, "1,016"), (16_110.0, "16,110")],
)
def test_numbers_have_four_digits_or_no_decimals(value: float, text: str) -> None:
    assert four_digits(value) == text
    assert in_ms(value / 1e3) == f"{text} ms"
