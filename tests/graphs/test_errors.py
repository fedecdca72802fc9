"""Messages are one line that a terminal can show."""

import pytest

from graphs.errors import InputError, printable


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
