"""Runs code of the user's: whatever it raises, and even `os._exit`, becomes one line that names its own."""

from __future__ import annotations

import os
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from graphs.system.errors import InputError

end_at_once = os._exit
"""Ends the process; `os._exit` itself raises an exception while code of the user's runs."""

_ROOT = Path(__file__).parents[2]
_OURS = tuple(_ROOT / room for room in ("graphs", "graphs/system", "graphs/capture", "agent/evaluation"))
"""Folders of ours that call a user's code; the models of our families are as a user's."""
_STDLIB = Path(sysconfig.get_path("stdlib"))


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
        line = user_line(error)
        raise fail(f"{line + ': ' if line else ''}{_reason(error)}") from error
    finally:
        os._exit = before


def _reason(error: BaseException) -> str:
    if isinstance(error, SystemExit):
        call = "os._exit" if isinstance(error, _Exit) else "sys.exit"
        return f"it calls {call}({error.code!r}); leave that out"
    return " ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":")


def user_line(error: BaseException) -> str | None:
    """Returns `file:line` of the innermost call in the user's own code that led to an error.

    If there is none, because the model is a library's, returns the innermost call outside of torch; None if
    every call is torch's.
    """
    calls = traceback.walk_tb(error.__traceback__)
    frames = [(Path(frame.f_code.co_filename), line) for frame, line in calls]
    frames = [(file, line) for file, line in frames if _may_be_a_model(file)]
    users = [(file, line) for file, line in frames if not _is_installed(file)]
    if not frames:
        return None
    file, line = (users or frames)[-1]
    return f"{_short_path(file)}:{line}"


def _may_be_a_model(file: Path) -> bool:
    """Says whether a file is neither torch's, Python's, ours nor generated code."""
    if not file.is_absolute() or file.parent in _OURS:
        return False
    return _short_path(file).parts[0] != "torch" if _is_installed(file) else not file.is_relative_to(_STDLIB)


def _is_installed(file: Path) -> bool:
    return "site-packages" in file.parts or "dist-packages" in file.parts


def _short_path(file: Path) -> Path:
    """A path below site-packages or the working directory if it lies there."""
    if _is_installed(file):
        start = max(i for i, part in enumerate(file.parts) if part in ("site-packages", "dist-packages"))
        return Path(*file.parts[start + 1 :])
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
