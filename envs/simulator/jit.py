"""Compilation of the kernels: cached on disk, announced, and repeated when a dependency has changed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

from numba import njit, types
from numba.core.caching import FunctionCache

DAMAGED_OR_STALE = (EOFError, UnpicklingError, AttributeError, ImportError)
"""What loading a cached kernel raises: the first two where a file is cut short, the others where the file
names a type that has been renamed or moved."""


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
        entry: whether Python calls it too, not only other kernels.
        allocates: whether it makes arrays, or gets a new array from another kernel. The others are compiled
            without reference counts: to count the references of some fifty arrays takes three times as long
            as one step of an episode.
        inline: whether to copy it into its callers instead of compiling it on its own: for large kernels with
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


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, extended to all that the machine code depends on besides the file of the function.

    These are the kernels that it calls, the constants that it imports and the fields of the tuples that it
    takes.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
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

    def load_overload(self, signature: object, target_context: object) -> object:
        try:
            found = super().load_overload(signature, target_context)
        except DAMAGED_OR_STALE:
            self.flush()
            found = None
        if found is None:
            _announce()
        return found


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


@cache
def _announce() -> None:
    print(
        "Compiling loops, once after an installation or a change (about half a minute) ...", file=sys.stderr
    )
