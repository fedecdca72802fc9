"""The module call, and the line of the user's code, that ran each node of a captured model's trace."""

from __future__ import annotations

import contextlib
import os
import sys
import sysconfig
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from torch import fx, nn
from torch.overrides import TorchFunctionMode

from graphs.capture.python_state import TRACES
from graphs.system.errors import printable

CALL = "placewalk.call"
"""Key under which torch keeps the `ModuleCall` of a node."""
LINE = "placewalk.line"
"""Key under which torch keeps the line of a node."""
TORCH = f"{Path(torch.__file__).parent}{os.sep}"
HERE = f"{Path(__file__).parent}{os.sep}"
PASSING = f"{HERE}carried.py"
"""File of ours that stands between the user's code and torch."""


@dataclass(frozen=True)
class ModuleCall:
    """One call of a module of the captured model.

    Attributes:
        path: path of the module; "" is the model itself.
        number: number of earlier calls of the same path.
    """

    path: str
    number: int


@contextlib.contextmanager
def record_calls(*models: nn.Module) -> Iterator[None]:
    """Makes torch record on every node the call that ran it or, in the backward pass, caused it.

    A module that stands in several places of its caller is taken to be called at each place in turn.

    Args:
        models: modules with the same paths, of which any may be called.
    """
    paths: dict[nn.Module, list[str]] = {}
    for path, module in (item for model in models for item in model.named_modules(remove_duplicate=False)):
        paths.setdefault(module, []).append(path)
    running: list[tuple[ModuleCall, contextlib.AbstractContextManager[None]]] = []
    calls_of: Counter[str] = Counter()

    def enter(module: nn.Module, _: object) -> None:
        if not running:
            calls_of.clear()  # torch may run a step more than once
        caller = running[-1][0].path if running else ""
        here = [path for path in paths[module] if path.startswith(caller and f"{caller}.")]
        path = min(here or paths[module], key=calls_of.__getitem__)
        call = ModuleCall(path, calls_of[path])
        calls_of[path] += 1
        annotation = fx.traceback.annotate({CALL: call})
        annotation.__enter__()
        running.append((call, annotation))

    def leave(*_: object) -> None:
        running.pop()[1].__exit__(None, None, None)

    setattr(enter, TRACES, True)
    setattr(leave, TRACES, True)
    hooks = [module.register_forward_pre_hook(enter) for module in paths]
    hooks += [module.register_forward_hook(leave, always_call=True) for module in paths]
    try:
        yield
    finally:
        while running:  # after an error torch may skip the hooks
            leave()
        for hook in hooks:
            hook.remove()


def module_tree(model: nn.Module) -> dict[str, bool]:
    """Returns `GraphColumns.tree`; a module is there once, or at each of its places in its first parent."""
    parents: dict[nn.Module, str] = {}
    return {
        printable(path): type(module).forward is not nn.Module.forward
        for path, module in model.named_modules(remove_duplicate=False)
        if parents.setdefault(module, path.rpartition(".")[0]) == path.rpartition(".")[0]
    }


def call_of(node: fx.Node) -> ModuleCall | None:
    """Returns the call that ran a node or, in the backward pass, the call that caused it; None if unknown."""
    return (node.meta.get("custom") or {}).get(CALL)


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
        line = calling_line(sys._getframe(1))
        with fx.traceback.annotate({LINE: line}):
            return func(*args, **(kwargs or {}))


def source_of(node: fx.Node) -> str:
    """Returns the line of a node as `file.py:12`, "" if it is unknown."""
    return (node.meta.get("custom") or {}).get(LINE, "")


def calling_line(frame: FrameType | None) -> str:
    """Returns the innermost line outside of torch; "" where torch alone ran a module of its own."""
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(HERE) and path != PASSING:
            return ""
        if not path.startswith((TORCH, PASSING, "<")):
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
