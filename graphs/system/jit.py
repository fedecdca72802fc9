"""Compilation of the kernels: cached on disk, announced, and repeated when a dependency has changed.

numba unpickles what it caches, so the cache lies in a folder that only the user can write. A cache that is
damaged is made anew; where there is no place for one, every process compiles for itself.
"""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from numba import config, njit, types
from numba.core.caching import (
    CompileResultCacheImpl,
    FunctionCache,
    IndexDataCacheFile,
    UserProvidedCacheLocator,
)

from graphs.system.errors import printable

CACHE = Path("placewalk", "numba")
"""Folder of the cache in the user's folder of caches."""
WRITABLE_BY_OTHERS = stat.S_IWGRP | stat.S_IWOTH
LONGEST_S = 600.0
"""Seconds after which a process no longer waits for another one that compiles the same kernel."""
DIGEST_BYTES = hashlib.sha256().digest_size


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    entry: bool = False,
    allocates: bool = False,
    inline: bool = False,
) -> Any:
    """Compiles a function with numba at its first call; it runs without the interpreter's lock.

    Later processes load it from disk.

    Args:
        entry: true if Python calls it too, not only other kernels.
        allocates: true if it makes arrays, or gets a new array from another kernel. The others are compiled
            without reference counts: to count the references of some fifty arrays takes three times as long
            as one step of an episode.
        inline: true to copy it into its callers instead of compiling it on its own: for large kernels with
            one caller, as each level of callers is compiled together with all that it calls.
    """
    options: dict[str, Any] = {
        "inline": "always" if inline else "never",
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": not entry,
        "_nrt": allocates,
    }

    def compiled(function: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, error_model="numpy", **options)(function)
        dispatcher._cache = _Cache(function)
        return dispatcher

    return compiled if function is None else compiled(function)


class _OwnFolder(UserProvidedCacheLocator):  # type: ignore[misc]
    """A folder that only this user can write: `NUMBA_CACHE_DIR`, by default in the user's folder of caches.

    Raises:
        OSError: it cannot be made or written, or others can write it or replace a folder above it.
    """

    def __init__(self, function: Callable[..., Any], path: str) -> None:
        self._py_file, self._lineno = path, function.__code__.co_firstlineno
        named = os.environ.get("XDG_CACHE_HOME", "")
        user_cache = Path(named) if os.path.isabs(named) else Path.home() / ".cache"
        self._root = Path(config.CACHE_DIR or user_cache / CACHE)
        self._cache_path = str(self._root / self.get_suitable_cache_subpath(path))

    def ensure_cache_path(self) -> None:
        for folder in (self._root, Path(self._cache_path)):
            folder.mkdir(mode=stat.S_IRWXU, parents=True, exist_ok=True)
            if not _is_ours_alone(folder.stat()):
                raise PermissionError(errno.EPERM, f"others can write {folder}")
        for parent in self._root.resolve().parents:
            if _others_can_replace_in(parent.stat()):
                raise PermissionError(errno.EPERM, f"others can replace folders in {parent}")
        super().ensure_cache_path()

    @classmethod
    def from_function(cls, function: Callable[..., Any], path: str) -> _OwnFolder:
        locator = cls(function, path)
        locator.ensure_cache_path()
        return locator


def own_folder(function: Callable[..., Any]) -> Path:
    """Returns the folder of the cached kernels that come from the file of a function.

    Raises:
        OSError: as of `_OwnFolder`.
    """
    return Path(_OwnFolder.from_function(function, function.__code__.co_filename).get_cache_path())


def _is_ours_alone(status: os.stat_result) -> bool:
    return status.st_uid == os.getuid() and not status.st_mode & WRITABLE_BY_OTHERS


def _others_can_replace_in(parent: os.stat_result) -> bool:
    """Says whether others can rename what a folder holds; the user's own group counts as the user."""
    if parent.st_uid not in (0, os.getuid()):
        return True
    others = stat.S_IWOTH if parent.st_gid in (0, os.getgid()) else WRITABLE_BY_OTHERS
    return bool(parent.st_mode & others) and not parent.st_mode & stat.S_ISVTX


class _Files(CompileResultCacheImpl):  # type: ignore[misc]
    """The files that numba writes for one kernel, in the user's folder."""

    _locator_classes = (_OwnFolder,)


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, extended to all that the machine code depends on besides the file of the function.

    These are the kernels that it calls, the constants that it imports and the fields of the tuples that it
    takes. A process that lacks a kernel waits while another one compiles it. No two wait for each other: a
    process waits only for kernels that those that it compiles call.
    """

    _impl_class = _Files

    def __init__(self, function: Callable[..., Any]) -> None:
        self._locks: dict[object, FileLock] = {}
        try:
            super().__init__(function)
            locator = self._impl.locator
            self._cache_file = _CheckedFiles(
                locator.get_cache_path(), self._impl.filename_base, locator.get_source_stamp()
            )
        except (RuntimeError, OSError) as error:  # there is no folder that this user alone can write
            self._enabled = False
            _PROGRESS.tell_no_cache(error)
        names = function.__globals__
        kernels = [getattr(value, "_cache", None) for value in names.values()]
        called = {cache.digest for cache in kernels if isinstance(cache, _Cache)}
        used = {name: names[name] for name in function.__code__.co_names if name in names}
        constants = {f"{name} = {value}" for name, value in used.items() if isinstance(value, CONSTANT)}
        parts = [_file_digest(function.__code__.co_filename), *sorted(called), *sorted(constants)]
        self.digest: str = hashlib.sha256("\n".join(parts).encode()).hexdigest()

    def _index_key(self, signature: Any, codegen: object) -> tuple[object, ...]:
        layout = tuple(_layout(getattr(signature, "args", signature)))
        return (*super()._index_key(signature, codegen), self.digest, layout)

    def load_overload(self, signature: object, target_context: Any) -> object:
        overload = self._read(signature, target_context)
        if overload is None and self._enabled:
            key = str(self._index_key(signature, target_context.codegen()))
            lock = self._locks.setdefault(signature, self._lock(hashlib.sha256(key.encode()).hexdigest()))
            with suppress(OSError, NotImplementedError):  # a disk without locks, or a holder that hangs
                lock.acquire()
            overload = self._read(signature, target_context)  # another process may have compiled it meanwhile
            if overload is not None:
                self._unlock(signature)
        if overload is None:
            _PROGRESS.begin()
        return overload

    def save_overload(self, signature: object, data: object) -> None:
        _PROGRESS.count()
        if not self._enabled:
            return
        try:
            with self._lock("index"):
                super().save_overload(signature, data)
        except (OSError, NotImplementedError, DamagedError) as error:
            self._enabled = False
            _PROGRESS.tell_no_cache(error)
        finally:
            self._unlock(signature)

    def _read(self, signature: object, target_context: object) -> object:
        try:
            return super().load_overload(signature, target_context)
        except OSError:
            return None
        except Exception:  # damaged, or it names a type that has been renamed or moved
            with suppress(OSError):
                self.flush()
            return None

    def _lock(self, of: str) -> FileLock:
        return FileLock(
            f"{self._cache_file._index_path}.{of[:16]}.lock", timeout=LONGEST_S, thread_local=False
        )

    def _unlock(self, signature: object) -> None:
        """Releases the lock of a kernel; processes that wait for it find the kernel compiled."""
        if (lock := self._locks.pop(signature, None)) is not None and lock.is_locked:
            with suppress(OSError):
                os.unlink(lock.lock_file)
            lock.release(force=True)


class DamagedError(Exception):
    """A file of the cache that is not as it was written."""


class _CheckedFiles(IndexDataCacheFile):  # type: ignore[misc]
    """numba's files of one kernel, each after its SHA-256: damaged machine code would crash the process.

    numba numbers the files of machine code, and two processes may take the same number for different types of
    arguments. Such a file therefore begins with its key.
    """

    def save(self, key: object, data: object) -> None:
        super().save(key, (key, data))

    def load(self, key: object) -> object:
        entry = super().load(key)
        if entry is None or entry[0] != key:
            return None
        return entry[1]

    def _load_index(self) -> dict[object, str]:
        try:
            version, stamp, overloads = pickle.loads(_read_checked(self._index_path))
        except FileNotFoundError:
            return {}
        is_current = (version, stamp) == (self._version, self._source_stamp)
        return overloads if is_current else {}

    def _save_index(self, overloads: dict[object, str]) -> None:
        self._write_checked(self._index_path, self._dump((self._version, self._source_stamp, overloads)))

    def _load_data(self, name: str) -> object:
        return pickle.loads(_read_checked(self._data_path(name)))

    def _save_data(self, name: str, data: object) -> None:
        self._write_checked(self._data_path(name), self._dump(data))

    def _write_checked(self, path: str, data: bytes) -> None:
        with self._open_for_write(path) as file:
            os.fchmod(file.fileno(), stat.S_IRUSR | stat.S_IWUSR)
            file.write(hashlib.sha256(data).digest() + data)


def _read_checked(path: str) -> bytes:
    with open(path, "rb") as file:
        if not _is_ours_alone(os.fstat(file.fileno())):
            raise DamagedError(f"{path}: others can write it")
        whole = file.read()
    digest, data = whole[:DIGEST_BYTES], whole[DIGEST_BYTES:]
    if hashlib.sha256(data).digest() != digest:
        raise DamagedError(f"{path}: is damaged")
    return data


CONSTANT = (bool, int, float, str, tuple)
"""Types of the globals that numba compiles in as constants."""


def _layout(kinds: Iterable[Any]) -> Iterator[tuple[str, ...]]:
    """Yields the field names of all named tuples; numba compares their classes and types only."""
    for kind in kinds:
        if isinstance(kind, types.BaseNamedTuple):
            yield kind.fields
            yield from _layout(kind.types)


@cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


class _Progress:
    """Prints how many kernels this process has compiled, at most every `PERIOD_S` seconds.

    A kernel counts for each kind of arguments. How many there will be is not known: modules with kernels are
    imported as they are needed.
    """

    def __init__(self) -> None:
        self._n_compiled, self._said_s = 0, 0.0
        self._has_begun, self._told_no_cache = False, False

    def begin(self) -> None:
        """Says before the first kernel that they are compiled."""
        if not self._has_begun:
            self._has_begun = True
            keeping = "" if self._told_no_cache else ", and keeping them for later commands"
            self._say(f"Compiling loops{keeping}. No budget counts this time ...")

    def count(self) -> None:
        """Counts a kernel that was compiled."""
        self._n_compiled += 1
        if time.monotonic() - self._said_s > PERIOD_S:
            self._say(f"Compiling loops, {self._n_compiled} done ...")

    def tell_no_cache(self, error: Exception) -> None:
        """Says once why nothing is kept."""
        if not self._told_no_cache:
            self._told_no_cache = True
            why = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
            self._say(
                f"Compiled loops cannot be kept ({printable(why)}), so every process compiles them anew; "
                "set NUMBA_CACHE_DIR to a folder that only you can write"
            )

    def _say(self, line: str) -> None:
        self._said_s = time.monotonic()
        with suppress(OSError, ValueError):  # nobody needs to read it
            print(line, file=sys.stderr)


PERIOD_S = 10.0
"""Seconds between two lines about compiling."""
_PROGRESS = _Progress()
