"""Strict reading and atomic writing of JSON files, plain or gzipped, and journals of JSON lines.

Strict means: UTF-8, no duplicate keys, no NaN or Infinity.
"""

from __future__ import annotations

import gzip
import json
import os
import secrets
import stat
import zlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

from graphs.system.errors import InputError

DRAFT = ".*.tmp"
"""Pattern of the names of drafts."""

MAX_DECOMPRESSED_BYTES = 2**30
"""Bytes that a gzip file may decompress to where nothing else is said: some thirty times the largest graph of
`graphs.families.large`, but no bomb, of which 1 MB may hold a thousand times as much."""
CHUNK_BYTES = 2**20

H = TypeVar("H", bound=Hashable)


class FileFormatError(InputError):
    """A file that cannot be read or breaks its format; the message says where and what would be right."""


def read_json(path: str | os.PathLike[str], *, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> object:
    """Read the JSON value that a file holds; a name ending in `.gz` is decompressed.

    Args:
        limit_bytes: greatest size of what is decompressed; a plain file may have any size.

    Raises:
        FileFormatError: the path is no readable file, is too large, or holds no strict JSON.
    """
    return parse_json(read_text(Path(path), limit_bytes), str(path))


def read_json_lines(
    path: str | os.PathLike[str], *, limit_bytes: int = MAX_DECOMPRESSED_BYTES
) -> Iterator[tuple[str, object]]:
    """Read one JSON value a line, blank lines left out; yields (`path:line`, value).

    Args:
        limit_bytes: greatest size of what is decompressed, all lines together.

    Raises:
        FileFormatError: the path is no readable file, is too large, or a line holds no strict JSON.
    """
    # str.splitlines would also cut at U+2028 and others, which JSON strings may hold.
    for number, line in enumerate(read_text(Path(path), limit_bytes).split("\n"), start=1):
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
        reason = "an integer has too many digits" if "integer string" in str(error) else error
        raise FileFormatError(f"{where}: is no strict JSON: {reason}") from None


def first_repeated(values: Iterable[H]) -> H | None:
    """Finds the first value that equals an earlier one; None where all are distinct."""
    seen: set[H] = set()
    for value in values:
        if value in seen:
            return value
        seen.add(value)
    return None


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
    """Replaces a file as `write_all_atomic` does."""
    write_all_atomic({Path(path): data})


def write_all_atomic(files: Mapping[Path, bytes]) -> None:
    """Replace files at once: a reader, or a crash, sees the old bytes of each or the new, never a part.

    No file is replaced before all are on disk, so that a full disk leaves all of them as they were. A name
    ending in `.gz` is compressed without a time stamp, so equal data make equal files. The file that a link
    leads to is replaced; mode and, where permitted, owner stay. A device or pipe is written to.

    Raises:
        OSError: one cannot be written; the error names its path.
    """
    with ExitStack() as drafts:
        written = {path: drafts.enter_context(_written(path, data)) for path, data in files.items()}
        for path, draft in written.items():
            if draft != path:
                with naming(path):
                    sync_folder(draft.replace(os.path.realpath(path)).parent)


@contextmanager
def _written(path: Path, data: bytes) -> Iterator[Path]:
    """Writes to a draft beside a file, or to a device or a pipe itself; yields which it was."""
    before, draft, flags = None, draft_of(Path(os.path.realpath(path))), os.O_CREAT | os.O_EXCL
    with naming(path), suppress(FileNotFoundError):
        before = os.stat(path)
        if not stat.S_ISREG(before.st_mode):
            draft, flags = path, os.O_NONBLOCK  # an error where nobody reads a pipe
    try:
        mode = 0o666 if before is None else stat.S_IRUSR | stat.S_IWUSR
        with naming(path), open(os.open(draft, os.O_WRONLY | flags, mode), "wb") as file:
            os.set_blocking(file.fileno(), True)
            for owner, group in ((-1, before.st_gid), (before.st_uid, -1)) if before else ():
                with suppress(OSError):
                    os.fchown(file.fileno(), owner, group)
            if before:
                os.fchmod(file.fileno(), stat.S_IMODE(before.st_mode))
            file.write(gzip.compress(data, mtime=0) if path.suffix == ".gz" else data)
            file.flush()
            if draft != path:
                os.fsync(file.fileno())
        yield draft
    finally:
        if draft != path:
            draft.unlink(missing_ok=True)


def draft_of(target: Path) -> Path:
    """Makes a path, which no other process or thread has, to write before it is renamed to the target.

    Names may have 255 bytes in all, so that it takes only the beginning of the target's.
    """
    return target.with_name(f".{target.name[:32]}.{secrets.token_hex(8)}.tmp")


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Makes the system's errors name the path that a caller means, not that of a draft or none."""
    try:
        yield
    except OSError as error:
        raise error if error.errno is None else OSError(error.errno, error.strerror, str(path)) from None


def sync_folder(folder: Path) -> None:
    """Makes sure that the names in a folder are on disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_text(path: Path, limit_bytes: int = MAX_DECOMPRESSED_BYTES) -> str:
    """Reads the text of a file, UTF-8; a name ending in `.gz` is decompressed.

    Args:
        limit_bytes: greatest size of what is decompressed.

    Raises:
        FileFormatError: the path is no readable file, is too large, or holds no text.
    """
    try:
        if is_irregular(path):
            raise FileFormatError(f"{path}: is no regular file; expected a file of text")
        return _read_bytes(path, limit_bytes).decode("utf-8")
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


def is_irregular(path: Path) -> bool:
    """Says whether a path is a folder, a device, or a pipe, whose reader may wait for ever."""
    return path.exists() and not path.is_file()


def _read_bytes(path: Path, limit_bytes: int) -> bytes:
    if path.suffix != ".gz":
        return path.read_bytes()
    parts, left_bytes = [], limit_bytes
    with gzip.open(path) as file:
        while part := file.read(CHUNK_BYTES):
            parts.append(part)
            left_bytes -= len(part)
            if left_bytes < 0:
                raise FileFormatError(
                    f"{path}: holds more than {limit_bytes} bytes when it is decompressed; decompress it "
                    "yourself, or for a graph file raise --max-decompressed-bytes"
                )
    return b"".join(parts)


def _distinct_keys(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) != len(pairs):
        raise ValueError(f"key {first_repeated(key for key, _ in pairs)!r} is given twice")
    return record


def _refuse_constant(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")


class JournalError(InputError):
    """A line of a journal that this program did not write; the message says where."""


class Journal:
    """JSON values in a file, one a line, each on disk before `append` returns.

    A last line that a crash cut short is dropped when the file is opened again.

    Args:
        path: path of the file; it and its folder are made where they do not exist.
        read: takes each value that the file holds and its place, which begins the message of any error.

    Raises:
        JournalError: no regular file, a line holds no strict JSON, or `read` raised `FileFormatError`.
    """

    def __init__(self, path: Path, read: Callable[[object, str], None]) -> None:
        self._path = path
        if is_irregular(path):
            raise JournalError(f"{path}: is no regular file; remove it")
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
        with naming(self._path), self._path.open("ab") as file:
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
