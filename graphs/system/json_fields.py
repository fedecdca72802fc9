"""Checks of parsed JSON values: each returns the value, or raises `FileFormatError`.

The error says where, what is there and what is expected. Unknown keys are errors, booleans are not numbers,
and strings are printable.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

import numpy as np

from graphs.system.json_files import FileFormatError

MAX_INTEGER = 2**53
"""Integers up to here survive every JSON reader."""


def fields(
    value: object,
    where: str,
    required: AbstractSet[str],
    optional: AbstractSet[str] = frozenset(),
    *,
    format: str | None = None,
) -> Mapping[str, Any]:
    """Check that a value is an object with all `required` keys and no key beyond `optional`.

    Args:
        where: begins the message of any error, which names all missing keys.
        format: value of the key `format`; it is checked first, as another format has other keys.
    """
    if not isinstance(value, Mapping):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an object")
    if format is not None and value.get("format", format) != format:
        raise FileFormatError(f"{where}: format is {quoted(value['format'])}; expected '{format}'")
    unknown = value.keys() - required - optional
    if unknown:
        allowed = ", ".join(sorted(required | optional))
        raise FileFormatError(f"{where}: unknown key {min(unknown)!r}; known keys are {allowed}")
    missing = sorted(required - value.keys())
    if missing:
        keys = ", ".join(map(repr, missing))
        verb = f"keys {keys} are missing" if len(missing) > 1 else f"key {keys} is missing"
        hint = f"; format must be '{format}'" if format is not None and "format" in missing else ""
        raise FileFormatError(f"{where}: {verb}{hint}")
    return value


def text(value: object, where: str) -> str:
    """Check that a value is a printable string: it may be printed in a table or on a terminal."""
    if not isinstance(value, str):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected a string")
    if not value.isprintable():
        raise FileFormatError(f"{where}: {quoted(value)} holds characters that cannot be printed")
    return value


def name(value: object, where: str) -> str:
    """Check that a value is a printable string of at least one character."""
    if not text(value, where):
        raise FileFormatError(f"{where}: is empty; expected a name")
    return str(value)


def number(value: object, where: str) -> float:
    """Check that a value is a finite number, integer or not; numpy's are numbers too."""
    if not isinstance(value, (int, float, np.integer, np.floating)) or isinstance(value, bool):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        what = "NaN" if math.isnan(result) else "too large"
        raise FileFormatError(f"{where}: is {what}; expected a finite number")
    return result


def integer(value: object, where: str) -> int:
    """Check that a value is an integer, Python's or numpy's, of at most `MAX_INTEGER` in size; 1.0 is not."""
    if type(value) is not int:
        if not isinstance(value, np.integer):
            raise FileFormatError(f"{where}: is {quoted(value)}; expected an integer")
        value = int(value)
    if abs(value) > MAX_INTEGER:
        raise FileFormatError(f"{where}: is {quoted(value)}; expected an integer of at most 2**53")
    return value


def array(value: object, where: str) -> list[Any]:
    """Check that a value is an array."""
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an array")
    return value


def json_number(value: float) -> int | float | None:
    """Converts a number to JSON: whole numbers become integers, NaN (not known) becomes null."""
    if value != value:
        return None
    return int(value) if value.is_integer() and abs(value) <= MAX_INTEGER else value


def kind_of(value: object) -> str:
    """Names the JSON type of a parsed value, e.g. 'an object'."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def quoted(value: object) -> str:
    """Quotes a parsed value on one short line, for an error message."""
    line = repr(value) if isinstance(value, (str, bool, int, float)) else kind_of(value)
    return line if len(line) <= 80 else f"{line[:77]}..."
