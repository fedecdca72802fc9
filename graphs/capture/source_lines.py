"""The line of the user's code that ran each node of a trace."""

from __future__ import annotations

import os
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx
from torch.overrides import TorchFunctionMode

LINE = "placewalk.line"
"""Key under which torch keeps the line of a node."""
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
HERE = f"{Path(__file__).parent}{os.sep}"


class SourceLines(TorchFunctionMode):
    """Makes torch record on every node the line that ran it or, in the backward pass, caused it.

    The line is the innermost one that is not torch's own: of the user's module, or of the library it is from.
    """

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Runs a function of torch's with its line noted."""
        line = _calling_line(sys._getframe(1))
        with fx.traceback.annotate({LINE: line}):
            return func(*args, **(kwargs or {}))


def source_of(node: fx.Node) -> str:
    """Returns the line of a node as `file.py:12`, "" if it is unknown."""
    line: str = (node.meta.get("custom") or {}).get(LINE, "")
    return line


def _calling_line(frame: FrameType | None) -> str:
    """Returns the innermost line outside of torch; "" where torch alone ran a module of its own."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(HERE):
            return ""
        if not path.startswith((TORCH, "<")):
            return f"{_short(path)}:{frame.f_lineno}"
        frame = frame.f_back
    return ""


@cache
def _short(path: str) -> str:
    """A path from the folder of installed packages or the working directory on; of other files the name."""
    for folder in (sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), os.getcwd()):
        if Path(path).is_relative_to(folder):
            return Path(path).relative_to(folder).as_posix()
    return Path(path).name
