"""One line on why a trace failed, with the line of the user's code at which it did."""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import DataDependentOutputException, DynamicOutputShapeException

from graphs.capture.step import one_line

_OURS = Path(__file__).parent
_TORCH = Path(torch.__file__).parent
_STDLIB = Path(sysconfig.get_path("stdlib"))


def needs_values(error: Exception) -> bool:
    """Whether a trace failed because the model needs the values of a tensor."""
    return isinstance(error, DataDependentOutputException | DynamicOutputShapeException)


def describe_failure(error: Exception) -> str:
    """Describes a failed trace in one line: `models.py:12: <what is wrong>`."""
    reason = one_line(error)
    if isinstance(error, DataDependentOutputException | DynamicOutputShapeException):
        reason = (
            f"needs the values that {error.func} yields, and a trace has shapes only; "
            "avoid .item(), nonzero, masks as indices and branches on tensors"
        )
    line = user_line(error)
    return f"{line}: {reason}" if line else reason


def user_line(error: Exception) -> str | None:
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
    """Whether a file is neither torch's, Python's, ours nor generated code."""
    in_stdlib = file.is_relative_to(_STDLIB) and not _is_installed(file)
    return file.is_absolute() and not (in_stdlib or file.is_relative_to(_TORCH) or file.parent == _OURS)


def _is_installed(file: Path) -> bool:
    return "site-packages" in file.parts or "dist-packages" in file.parts


def _short_path(file: Path) -> Path:
    """A path below site-packages or the working directory if it lies there."""
    if _is_installed(file):
        start = max(i for i, part in enumerate(file.parts) if part in ("site-packages", "dist-packages"))
        return Path(*file.parts[start + 1 :])
    return file.relative_to(Path.cwd()) if file.is_relative_to(Path.cwd()) else file
