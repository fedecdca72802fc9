"""Makes and captures the model that a function of the user's returns."""

from __future__ import annotations

import importlib
import io
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stdout
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

from graphs.system.errors import InputError, print_notice, printable
from graphs.system.registry import look_in
from graphs.system.user_code import users_code

if TYPE_CHECKING:
    from torch import nn

    from graphs.capture.captured_step import CapturedStep
    from graphs.capture.loss import Loss

MODEL = "model"
"""Family of a graph that was captured from a model of the user's."""
RETURNS = "return (module, inputs) or (module, inputs, loss), with several inputs in one tuple"


class UserModel(NamedTuple):
    """The values that a function of the user's returns; `loss` is as `graphs.capture.capture` takes it."""

    module: nn.Module
    inputs: Any
    loss: Loss | None = None


class SourceError(InputError):
    """Graphs that cannot be loaded; the message says which, and what would be right."""


def capture_model(
    spec: str, made: UserModel | None = None, *, prompt: int | None = None, **settings: Any
) -> CapturedStep:
    """Capture the model that a function of the user's returns.

    Args:
        spec: argument of `make_model`.
        made: model and inputs that it made, if it was called.
        prompt: tokens before the one whose step is captured, as `capture_decoding` takes it; None = all
            words of the inputs at once.
        settings: those of `capture_step`.

    Raises:
        SourceError: the function cannot be found, fails, or returns something else.
        GraphError: the model cannot be captured.
    """
    made = make_model(spec) if made is None else made
    from graphs.capture import capture, decoding

    name = spec.rpartition(":")[2]
    with _users_code(spec, "cannot be captured"):
        if prompt is not None:
            step = decoding.capture_decoding(made.module, made.inputs, prompt, name)
        else:
            step = capture.capture_step(made.module, made.inputs, loss=made.loss, name=name, **settings)
    return replace(step, graph=replace(step.graph, family=MODEL))


def make_model(
    spec: str, *, split: int | None = None, batch_dim: int = 0, names: Sequence[str] = ()
) -> UserModel:
    """Call the function of the user's that makes a model.

    Args:
        spec: `package.module:function`, importable from the working directory; the function takes nothing
            and returns `(module, inputs)`, or `(module, inputs, loss)`.
        split, batch_dim, names: number of microbatches that the inputs are cut into, as `split_batch` cuts
            them, to return those of the first; None = the inputs as they are.

    Raises:
        SourceError: the function cannot be found, fails, or returns something else.
        InputError: the inputs cannot be split.
    """
    function = _find_function(spec)
    with _users_code(spec, "the function failed"):
        made = function()
    if not isinstance(made, tuple) or len(made) not in (2, 3):
        raise SourceError(f"--model {spec}: returned {type(made).__name__}; {RETURNS}")
    from torch import nn

    model = UserModel(*made)
    if not isinstance(model.module, nn.Module):
        raise SourceError(
            f"--model {spec}: the first thing returned is {type(model.module).__name__}, not a "
            f"torch.nn.Module; {RETURNS}"
        )
    if split is None:
        return model
    from graphs.capture.structures import split_batch

    def say(line: str) -> None:
        print_notice(f"--model {spec}: {line}")

    return model._replace(inputs=split_batch(model.inputs, split, batch_dim, names, notify=say)[0])


def _find_function(spec: str) -> Callable[[], Any]:
    module_name, separator, function_name = spec.partition(":")
    if not (separator and module_name and function_name):
        raise SourceError(f"--model {spec}: give package.module:function")
    look_in(os.getcwd())
    with _users_code(spec, f"cannot import '{module_name}'"):
        module = importlib.import_module(module_name)
    function = getattr(module, function_name, None)
    if not callable(function):
        place = f" ({module.__file__})" if module.__file__ else ""
        raise SourceError(f"--model {spec}: module '{module_name}'{place} has no function '{function_name}'")
    return function


@contextmanager
def _users_code(spec: str, failure: str) -> Iterator[None]:
    """Runs code of the user's: what it raises is one line that names its own, and what it prints is marked.

    Args:
        failure: meaning of an error.

    Raises:
        SourceError: it raised anything but an error of ours, or ended the process.
    """

    def fail(why: str) -> SourceError:
        return SourceError(f"--model {spec}: {failure}: {why}")

    printed = _MarkedLines(f"--model {spec} prints: ")
    try:
        with redirect_stdout(printed), users_code(fail):
            yield
    finally:
        printed.end()


class _MarkedLines(io.TextIOBase):
    """Prints lines to stderr, each with a mark before it, and nothing that a terminal would obey."""

    def __init__(self, mark: str) -> None:
        self._mark, self._line = mark, ""

    def write(self, text: str) -> int:
        """Prints the lines that are complete."""
        *complete, self._line = (self._line + text).split("\n")
        for line in complete:
            print(f"{self._mark}{printable(line)}", file=sys.stderr)
        return len(text)

    def end(self) -> None:
        """Prints a last line that has no end."""
        if self._line:
            self.write("\n")
