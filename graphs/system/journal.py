"""Files that only grow: what was written to them survives a crash."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

from graphs.system.errors import InputError
from graphs.system.json_files import FileFormatError, parse_json


class JournalError(InputError):
    """A line of a journal that this program did not write; the message says where."""


class Journal:
    """JSON values in a file, one a line, each on disk before `append` returns.

    A last line that a crash cut short is dropped when the file is opened again.

    Args:
        path: of the file; it and its folder are made where they do not exist.
        read: takes each value that the file holds and its place, which begins the message of any error.

    Raises:
        JournalError: a line holds no strict JSON, or `read` raised `FileFormatError`.
    """

    def __init__(self, path: Path, read: Callable[[object, str], None]) -> None:
        self._path = path
        whole = path.read_bytes().rpartition(b"\n")[0] + b"\n" if path.exists() else b""
        for number, line in enumerate(whole.split(b"\n"), start=1):
            if line:
                _read_line(line, f"{path}:{number}", read)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as file:
            file.truncate(len(whole) if whole.strip() else 0)

    def append(self, value: object) -> None:
        """Appends a value.

        Raises:
            ValueError: the value holds NaN or an infinity.
        """
        with self._path.open("ab") as file:
            file.write(json.dumps(value, allow_nan=False).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())


def _read_line(line: bytes, where: str, read: Callable[[object, str], None]) -> None:
    try:
        read(parse_json(line.decode(), where), where)
    except UnicodeDecodeError:
        raise JournalError(f"{where}: is not UTF-8; remove the line") from None
    except FileFormatError as error:
        raise JournalError(f"{error}; remove the line, and what it held is made again") from None
