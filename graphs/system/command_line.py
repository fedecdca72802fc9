"""The parser and the error boundary of all commands: every answer and every error is one line.

Nothing heavy is imported here, so that a signal while the rest is imported ends in one line too.
"""

from __future__ import annotations

import argparse
import errno
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from threading import current_thread, main_thread
from types import FrameType
from typing import Any, NoReturn, TextIO, cast

from graphs.system.errors import InputError, is_out_of_memory, shown
from graphs.system.interrupts import SIGNALS, handled_by
from graphs.system.user_code import end_at_once

_NAMES = "EACCES EEXIST EISDIR ELOOP ENAMETOOLONG ENOENT ENOTDIR ENOTEMPTY EPERM EROFS"
WRONG_PATH = frozenset(getattr(errno, name) for name in _NAMES.split())
"""Error numbers of a path that was wrong from the start; all others happen to a right one."""
RESUMABLE = "interrupted; run the same command again to resume"
"""Message where an interrupt ends work that the same command resumes."""
NO_MEMORY = "out of memory; give it fewer graphs at once, or smaller graphs, models or inputs"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
SENT_AGAIN_S = 0.01
"""After how long an interrupt that Python dropped is sent again."""
N_STREAMS = 3
"""Descriptors below are those of stdin, stdout and stderr."""


class OneLineParser(argparse.ArgumentParser):
    """Parses a command line, and says in one line what is wrong with it."""

    def error(self, message: str) -> NoReturn:
        """Exits with code 2."""
        self.exit(2, f"{self.prog}: {shown(message)}; see --help\n")


def name_of(script: str) -> str:
    """Returns the name of a command: that of its script, or of the installed program that was typed."""
    program = os.path.basename(sys.argv[0]).removesuffix(".exe")
    return program if program.startswith("placewalk-") else script


def as_typed(script: str) -> str:
    """Returns how a command is typed: `python evaluate.py`, or `placewalk-evaluate` where that was typed."""
    return name if (name := name_of(script)) != script else f"python {script}"


def run_command(name: str, work: Callable[[], int], *, interrupted: str = "interrupted") -> int:
    """Runs a command; an error becomes one line on stderr that begins with its name.

    Until the work is `interruptible`, SIGINT and SIGTERM end the process at once, whatever it does.

    Args:
        work: returns the exit code.
        interrupted: message where an interrupt ends the work.

    Returns:
        What the work returned; 2 where the input is wrong, 1 for any other error.
    """

    def leave(number: int, frame: FrameType | None) -> None:
        """Ends the process; the code that runs may be anybody's, and catch any exception."""
        with suppress(OSError):
            os.write(2, f"{name}: interrupted before it began\n".encode())
        end_at_once(1)

    with _lasting_streams(), handled_by(leave):
        try:
            code = work()
            sys.stdout.flush()
        except KeyboardInterrupt:
            code = _say(name, interrupted, 1)
        except InputError as error:
            code = _say(name, str(error), error.exit_code)
        except OSError as error:
            code = _say(name, *_describe_os_error(error))
        except ModuleNotFoundError as error:
            code = _say(name, *_describe_missing_module(error))
        except Exception as error:
            code = _say(name, NO_MEMORY if is_out_of_memory(error) else _report(error), 1)
    return code


@contextmanager
def interruptible() -> Iterator[None]:
    """Makes SIGINT and SIGTERM raise `KeyboardInterrupt`, for work that then ends in order.

    Python drops what a finalizer or the callback of a weak reference raises; an interrupt that is lost so is
    sent again.
    """
    with handled_by(signal.default_int_handler, (*SIGNALS, signal.SIGALRM)), _lost_interrupts_sent_again():
        yield


def _say(name: str, message: str, code: int) -> int:
    print(f"{name}: {shown(message)}", file=sys.stderr)
    return code


def _describe_os_error(error: OSError) -> tuple[str, int]:
    if error.errno is None:
        return _report(error), 1
    where = f"{os.fsdecode(error.filename)}: " if isinstance(error.filename, str | bytes) else ""
    then = next(iter(getattr(error, "__notes__", ())), "run the same command again")
    hint = f"; free some space, then {then}" if error.errno in FULL else ""
    return f"{where}{error.strerror}{hint}", 2 if where and error.errno in WRONG_PATH else 1


def _describe_missing_module(error: ModuleNotFoundError) -> tuple[str, int]:
    if (error.name or "").partition(".")[0] in ("", "agent", "envs", "graphs"):
        return _report(error), 1
    return f"{sys.executable} has no '{error.name}'; run make setup, then . .venv/bin/activate", 2


def _report(error: Exception) -> str:
    """Writes an error that nobody expected to a file, and asks for it."""
    import shlex
    import tempfile
    import traceback

    kind = f"{type(error).__name__}: {error}".removesuffix(": ")
    text = f"{shlex.join(sys.argv)}\nPython {sys.version}\n\n{''.join(traceback.format_exception(error))}"
    try:
        with tempfile.NamedTemporaryFile(
            "w", prefix="placewalk-", suffix=".log", delete=False, encoding="utf-8", errors="backslashreplace"
        ) as file:
            file.write(text)
    except OSError:
        print(text, file=sys.stderr)
        return f"an error in the program: {kind}; please report it with the lines above"
    return f"an error in the program: {kind}; please report it with {file.name}"


@contextmanager
def _lost_interrupts_sent_again() -> Iterator[None]:
    if current_thread() is not main_thread():
        yield
        return
    report = sys.unraisablehook

    def hook(unraisable: sys.UnraisableHookArgs) -> None:
        """Raises it from a timer, once the callback that swallowed it is over."""
        if issubclass(unraisable.exc_type, KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, SENT_AGAIN_S)
        else:
            report(unraisable)

    sys.unraisablehook = hook
    try:
        yield
    finally:
        sys.unraisablehook = report
        signal.setitimer(signal.ITIMER_REAL, 0.0)


class _LastingStream:
    """A text stream whose other end may be closed: what nobody can read goes nowhere."""

    def __init__(self, stream: TextIO, nowhere: TextIO, dropped: tuple[type[Exception], ...]) -> None:
        self._stream, self._nowhere, self._dropped = stream, nowhere, dropped

    def write(self, text: str) -> int:
        """Writes a text, if that can be."""
        try:
            return self._stream.write(text)
        except self._dropped:
            self._discard()
            return len(text)

    def flush(self) -> None:
        """Flushes, if that can be."""
        try:
            self._stream.flush()
        except self._dropped:
            self._discard()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _discard(self) -> None:
        """Points the descriptor nowhere: writing out its buffer cannot fail any more, not even at exit."""
        with suppress(OSError, ValueError):
            os.dup2(self._nowhere.fileno(), self._stream.fileno())


@contextmanager
def _lasting_streams() -> Iterator[None]:
    """Keeps a command running when nobody reads what it prints; a result that a disk refuses is an error."""
    # What the shell closed (`2>&-`) is opened, as the next file that is opened would take its place.
    while (descriptor := os.open(os.devnull, os.O_RDWR)) < N_STREAMS:
        pass
    os.close(descriptor)
    before = sys.stdout, sys.stderr
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        # Python has no stream, but None, for a descriptor that the shell closed.
        out, error = sys.stdout or nowhere, sys.stderr or nowhere
        for stream in (out, error):
            if isinstance(stream, io.TextIOWrapper) and stream.errors in ("strict", "backslashreplace"):
                stream.reconfigure(errors="replace")  # `?` for what its encoding lacks
        sys.stdout = cast("TextIO", _LastingStream(out, nowhere, (BrokenPipeError,)))
        sys.stderr = cast("TextIO", _LastingStream(error, nowhere, (OSError, ValueError)))
        try:
            yield
        finally:
            sys.stdout, sys.stderr = before
