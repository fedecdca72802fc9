"""Messages are one line that a terminal can show."""

import pytest

from graphs.system.errors import InputError, printable, shortened, shown


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
