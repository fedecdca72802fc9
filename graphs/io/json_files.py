"""Strict reading and atomic writing of JSON files, plain or gzipped.

Strict means: UTF-8, no duplicate keys, no NaN or Infinity.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any


class FileFormatError(ValueError):
    """A file that cannot be read or breaks its format; the message says where and what would be right."""


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
        raise ValueError(f"key {twice!r} is given twice")
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
