"""Compiling the numba loops: kept on disk, announced, and anew when a loop they call has changed."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from numba import njit
from numba.core.caching import FunctionCache


def kernel(
    function: Callable[..., Any] | None = None,
    *,
    entry: bool = False,
    allocates: bool = False,
    inline: bool = False,
) -> Any:
    """Compile a loop at its first call, without the interpreter's lock; later processes load it from disk.

    Args:
        entry: called from Python too, not from other loops only.
        allocates: makes arrays. Others are compiled without counting references: counting those of some fifty
            arrays cost a step of the walk three times what it does. A loop that gets a new array from another
            allocates too.
        inline: copy the loop into its callers instead of compiling it on its own: for large ones with one
            caller, as each level of callers would be compiled with all that it calls once more.
    """
    options: dict[str, Any] = {
        "inline": "always" if inline else "never",
        "no_cfunc_wrapper": True,
        "no_cpython_wrapper": not entry,
        "_nrt": allocates,
    }

    def compiled(loop: Callable[..., Any]) -> Any:
        dispatcher = njit(nogil=True, error_model="numpy", **options)(loop)
        dispatcher._cache = _Cache(loop)
        return dispatcher

    return compiled if function is None else compiled(function)


class _Cache(FunctionCache):  # type: ignore[misc]
    """numba's cache, which only looks at the file a function is in, made to look at all that it calls too."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        called = [getattr(value, "_cache", None) for value in function.__globals__.values()]
        parts = {cache.digest for cache in called if isinstance(cache, _Cache)}
        own = _file_digest(function.__code__.co_filename)
        self.digest: str = hashlib.sha256("".join([own, *sorted(parts)]).encode()).hexdigest()

    def _index_key(self, signature: object, codegen: object) -> tuple[object, ...]:
        return (*super()._index_key(signature, codegen), self.digest)

    def load_overload(self, signature: object, target_context: object) -> object:
        try:
            found = super().load_overload(signature, target_context)
        except Exception:  # cut short, or it names a type that has another name by now
            self.flush()
            found = None
        if found is None:
            _announce()
        return found


@cache
def _file_digest(path: str) -> str:
    return hashlib.sha256(Path(path).read_bytes()).hexdigest()


@cache
def _announce() -> None:
    print("Compiling loops, once after an installation or a change (10 to 20 s) ...", file=sys.stderr)
