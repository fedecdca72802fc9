"""What every error about the user's input is."""

from __future__ import annotations


class InputError(ValueError):
    """Input that is wrong; the message is one line: what is wrong, where, and what would be right.

    A command line prints it and ends with exit code 2. A `ValueError` that is no `InputError` is a fault of
    the program.

    Args:
        message: what cannot be printed is escaped, as names of files and other people's errors may hold it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


def printable(text: str) -> str:
    """Escapes control characters, line ends and the like, so that a terminal shows them and obeys none."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)
