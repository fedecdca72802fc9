"""The base class of errors about the user's input, the text of messages, and the check of arguments."""

from __future__ import annotations

import os
import re
import sys
import tempfile
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from math import inf
from numbers import Integral, Real
from types import NoneType
from typing import Any

NAME_CHARS, WORD_CHARS, MESSAGE_CHARS = 80, 250, 1000
"""The most characters that a message shows of a name in quotes, of a word such as a path, and in all."""
_SAID: list[set[str]] = []
_NAME = re.compile(r"""(?<!\w)(?:'[^']*'|"[^"]*")(?!\w)""")
_WORD = re.compile(rf"\S{{{WORD_CHARS + 1},}}")
_LEFT_OUT = "[...]"
OUT_OF_MEMORY = ("can't allocate memory", "out of memory")
"""Words in torch's errors that mean that memory is out."""


class InputError(ValueError):
    """Input that is wrong; the message is one line: what is wrong, where, and what would be right.

    A command line prints it and ends with its exit code. A `ValueError` that is no `InputError` is a fault of
    the program.

    Args:
        message: text that may hold any names of files and other people's errors; `shown` makes it fit.
    """

    exit_code = 2

    def __init__(self, message: str) -> None:
        super().__init__(shown(message))


WIDER: dict[Any, Any] = {int: Integral, float: Real}
WORDS: dict[Any, str] = {
    int: "a whole number",
    float: "a number",
    str: "a string",
    bool: "True or False",
    NoneType: "None",
}
WORDS |= {Callable: "a function", Sequence: "a list", Mapping: "a dict"}


def checked(
    error: type[InputError], name: str, value: Any, *kinds: Any, least: float = -inf, most: float = inf
) -> Any:
    """Returns an argument of some kinds; a bool is no number, a string no sequence, a class no function.

    Raises:
        InputError: it is of none of them, or a number out of range; of the class `error`.
    """
    strict = {kind for kind in (bool, str, type) if isinstance(value, kind)}
    is_kind = strict <= {*kinds} and isinstance(value, tuple(WIDER.get(kind, kind) for kind in kinds))
    if not is_kind or (isinstance(value, Real) and not least <= float(value) <= most):
        what = repr(value) if isinstance(value, str | int | float | None) else f"a {type(value).__name__}"
        use = " or ".join(WORDS.get(kind, kind.__name__) for kind in kinds)
        limits = f", at least {least}" * (least > -inf) + f", at most {most}" * (most < inf)
        raise error(f"{name} is {what}; use {use}{limits}")
    return value


def shown(message: str) -> str:
    """Escapes what cannot be printed in a message, and shortens long names, paths and values."""
    text = printable(message)
    if len(text) <= NAME_CHARS:
        return text
    text = _NAME.sub(lambda name: f"{name[0][0]}{shortened(name[0][1:-1])}{name[0][0]}", text)
    text = _WORD.sub(lambda word: shortened(word[0], WORD_CHARS), text)
    return shortened(text, MESSAGE_CHARS)


def shortened(text: str, limit: int = NAME_CHARS) -> str:
    """Leaves out the middle of a text that is longer than so many characters."""
    if len(text) <= limit:
        return text
    end = (limit - len(_LEFT_OUT)) // 2
    return f"{text[: limit - len(_LEFT_OUT) - end]}{_LEFT_OUT}{text[-end:]}"


def printable(text: str) -> str:
    """Escapes control characters, line ends and the like, so that a terminal shows them and obeys none."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def print_notice(line: str) -> None:
    """Prints a line to standard error; once in `each_line_once`, and from the first rank of torchrun."""
    if os.environ.get("RANK", "0") == "0" and all(line not in said for said in _SAID):
        print(line, file=sys.stderr)
    for said in _SAID:
        said.add(line)


@contextmanager
def each_line_once() -> Iterator[None]:
    """Prints each notice once, of captures of one model with several sizes of inputs."""
    _SAID.append(set())
    try:
        yield
    finally:
        _SAID.pop()


def logged(error: BaseException) -> str:
    """Writes an error and its cause, if it has one, to a temporary file; returns words that name the file."""
    if error.__cause__ is not None:
        with (
            suppress(OSError),
            tempfile.NamedTemporaryFile(prefix="placewalk-", suffix=".log", delete=False) as file,
        ):
            file.write("".join(traceback.format_exception(error)).encode(errors="backslashreplace"))
            return f" (traceback: {file.name})"
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    """Says whether an error is of Python or torch, and means that there is no memory left."""
    return isinstance(error, MemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def four_digits(value: float) -> str:
    """Formats a number with four significant digits; from 1,000 on, without decimals."""
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def in_ms(seconds: float) -> str:
    """Formats seconds as milliseconds, with their unit."""
    return f"{four_digits(1e3 * seconds)} ms"
