"""Strict reading and atomic writing of JSON files, plain or gzipped.

Strict means: UTF-8, no duplicate keys, no NaN or Infinity, no unknown keys; booleans are no numbers.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import os
import zlib
from collections.abc import Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

MAX_INTEGER = 2**53
"""Integers up to here survive every JSON reader."""


class FileFormatError(ValueError):
    """A file that cannot be read or breaks its format; the message says where, and what would be right."""


def read_json(path: str | os.PathLike[str]) -> object:
    """Read the JSON value that a file holds; a name ending in `.gz` is decompressed.

    Raises:
        FileFormatError: the path is no readable file, or holds no strict JSON.
    """
    return parse_json(_read_text(Path(path)), str(path))


def read_json_lines(path: str | os.PathLike[str]) -> Iterator[tuple[str, object]]:
    """Read one JSON value a line, blank lines left out; yields (`path:line`, value).

    Raises:
        FileFormatError: the path is no readable file, or a line holds no strict JSON.
    """
    # str.splitlines would also cut at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(_read_text(Path(path)).split("\n"), start=1):
        if line.strip():
            where = f"{path}:{number}"
            yield where, parse_json(line, where)


def parse_json(text: str, where: str) -> object:
    """Parse strict JSON; `where` begins the message of any error.

    Raises:
        FileFormatError: the text is no strict JSON.
    """
    if not text.strip():
        raise FileFormatError(f"{where}: is empty; expected JSON")
    try:
        return json.loads(text, object_pairs_hook=_distinct_keys, parse_constant=_refuse_constant)
    except RecursionError:
        raise FileFormatError(f"{where}: is nested too deeply") from None
    except ValueError as error:
        raise FileFormatError(f"{where}: is no strict JSON: {error}") from None


def write_json_atomic(path: str | os.PathLike[str], value: object, *, indent: int | None = 2) -> None:
    """Write one JSON value and a newline, atomically as `write_bytes_atomic` does.

    Raises:
        ValueError: the value holds NaN or an infinity.
    """
    write_bytes_atomic(path, (json.dumps(value, indent=indent, allow_nan=False) + "\n").encode())


def write_json_lines_atomic(path: str | os.PathLike[str], values: Iterable[object]) -> None:
    """Write one compact JSON value a line, atomically as `write_bytes_atomic` does.

    Raises:
        ValueError: a value holds NaN or an infinity.
    """
    lines = (json.dumps(value, separators=(",", ":"), allow_nan=False) + "\n" for value in values)
    write_bytes_atomic(path, "".join(lines).encode())


def write_bytes_atomic(path: str | os.PathLike[str], data: bytes) -> None:
    """Replace a file at once: a reader, or a crash, sees the old bytes or the new, never a part.

    A name ending in `.gz` is compressed without a time stamp, so equal data make equal files.
    """
    target = Path(path)
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(_gzip(data) if target.suffix == ".gz" else data)
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)
    _sync_folder(target.parent)


def fields(
    value: object, where: str, required: AbstractSet[str], optional: AbstractSet[str] = frozenset()
) -> Mapping[str, Any]:
    """Check that a value is an object with all `required` keys and no key beyond `optional`.

    Raises:
        FileFormatError: it is not.
    """
    if not isinstance(value, dict):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an object")
    unknown = value.keys() - required - optional
    if unknown:
        known = ", ".join(sorted(required | optional))
        raise FileFormatError(f"{where}: unknown key {min(unknown)!r}; known keys are {known}")
    missing = required - value.keys()
    if missing:
        raise FileFormatError(f"{where}: key {min(missing)!r} is missing")
    return value


def check_format(record: Mapping[str, Any], where: str, expected: str) -> None:
    """Check the `format` of a record.

    Raises:
        FileFormatError: it is another one.
    """
    if record["format"] != expected:
        raise FileFormatError(f"{where}: format is {shown(record['format'])}; expected '{expected}'")


def text(value: object, where: str) -> str:
    """Check that a value is a printable string: it may end up in a table or on a terminal.

    Raises:
        FileFormatError: it is not.
    """
    if not isinstance(value, str):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected a string")
    if not value.isprintable():
        raise FileFormatError(f"{where}: {shown(value)} holds characters that cannot be printed")
    return value


def name(value: object, where: str) -> str:
    """Check that a value is a printable string of at least one character.

    Raises:
        FileFormatError: it is not.
    """
    if not text(value, where):
        raise FileFormatError(f"{where}: is empty; expected a name")
    return str(value)


def number(value: object, where: str) -> float:
    """Check that a value is a finite number, integer or not.

    Raises:
        FileFormatError: it is not.
    """
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected a number")
    try:
        result = float(value)
    except OverflowError:
        result = math.inf
    if not math.isfinite(result):
        raise FileFormatError(f"{where}: is too large; expected a finite number")
    return result


def integer(value: object, where: str) -> int:
    """Check that a value is an integer of at most `MAX_INTEGER` in size; 1.0 is none.

    Raises:
        FileFormatError: it is not.
    """
    if type(value) is not int:
        raise FileFormatError(f"{where}: is {shown(value)}; expected an integer")
    if abs(value) > MAX_INTEGER:
        raise FileFormatError(f"{where}: is {shown(value)}; expected an integer of at most 2**53")
    return value


def array(value: object, where: str) -> list[Any]:
    """Check that a value is an array.

    Raises:
        FileFormatError: it is not.
    """
    if not isinstance(value, list):
        raise FileFormatError(f"{where}: is {kind_of(value)}; expected an array")
    return value


def kind_of(value: object) -> str:
    """What JSON calls a parsed value, e.g. 'an object'."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")


def shown(value: object) -> str:
    """A parsed value on one short line, as an error message quotes it."""
    line = repr(value) if isinstance(value, (str, bool, int, float)) else kind_of(value)
    return line if len(line) <= 80 else f"{line[:77]}..."


def _read_text(path: Path) -> str:
    try:
        if path.exists() and not path.is_file():
            raise FileFormatError(f"{path}: is no regular file; expected a JSON file")
        data = path.read_bytes()
        return (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileFormatError(f"{path}: is not UTF-8 (byte {error.start})") from None
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise FileFormatError(f"{path}: is no complete gzip file: {error}") from None
    except OSError as error:
        raise FileFormatError(f"{path}: cannot be read: {error.strerror}") from None
    except ValueError as error:
        if isinstance(error, FileFormatError):
            raise
        raise FileFormatError(f"{str(path)!r}: is no path: {error}") from None


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for index, key in enumerate(keys) if key in keys[:index])
        raise ValueError(f"key {shown(twice)} is given twice")
    return record


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


def _gzip(data: bytes) -> bytes:
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", mode="wb", fileobj=buffer, mtime=0) as file:
        file.write(data)
    return buffer.getvalue()


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
