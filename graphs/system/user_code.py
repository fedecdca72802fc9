"""Runs code of the user's: whatever it raises, and even `os._exit`, becomes one line that names its own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from graphs.system.errors import InputError
from graphs.system.user_line import user_line

end_at_once = os._exit
"""Ends the process; `os._exit` itself raises an exception while code of the user's runs."""


class _Exit(SystemExit):
    """Raised in place of `os._exit`."""


@contextmanager
def users_code(fail: Callable[[str], InputError]) -> Iterator[None]:
    """Describes what the block raises, unless that is an error of ours or an interrupt.

    Args:
        fail: makes the error from `file:line: reason`.

    Raises:
        InputError: what `fail` made.
    """
    process, before = os.getpid(), os._exit

    def leave(status: int) -> None:
        if os.getpid() != process:  # a child that was forked ends so
            end_at_once(status)
        raise _Exit(status)

    os._exit = leave  # type: ignore[assignment]
    try:
        yield
    except (InputError, KeyboardInterrupt):
        raise
    except BaseException as error:
        at = user_line(error)
        raise fail(f"{at + ': ' if at else ''}{_reason(error)}") from error
    finally:
        os._exit = before


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        call = "os._exit" if isinstance(error, _Exit) else "sys.exit"
        return f"it calls {call}({error.code!r}); leave that out"
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")
