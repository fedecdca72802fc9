"""Loads the graphs that a command line names: families, files, or a model of the user's own."""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from graphs.dataset import load_graphs
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph


class SourceError(ValueError):
    """Graphs that cannot be loaded; the message says which, and what would be right."""


def gather_graphs(families: Sequence[str], files: Sequence[str], model: str | None) -> tuple[OpGraph, ...]:
    """Load every graph that a command line names: families first, then files, then the model.

    Raises:
        SourceError: no source at all, two graphs of one name, or a model that cannot be loaded.
        ValueError: what the readers of families and files raise.
    """
    if not families and not files and model is None:
        raise SourceError("no graphs; give --families, --graphs or --model")
    graphs = load_graphs(dict.fromkeys(families))
    graphs += [graph for path in dict.fromkeys(files) for graph in read_graphs(path)]
    if model is not None:
        graphs.append(capture_model(model))
    _check_names(graphs)
    return tuple(graphs)


def _check_names(graphs: Iterable[OpGraph]) -> None:
    seen: set[str] = set()
    for graph in graphs:
        if graph.name in seen:
            raise SourceError(f"two graphs are named '{graph.name}'; results go by name, rename one")
        seen.add(graph.name)


def capture_model(spec: str) -> OpGraph:
    """Capture the model that a function of the user's returns.

    Args:
        spec: `package.module:function`, importable from the working directory; the function takes nothing
            and returns `(module, inputs)`.

    Raises:
        SourceError: the function cannot be found, fails, or returns something else.
        GraphError: the model cannot be captured.
    """
    made = _call(spec, _find_function(spec))
    if not isinstance(made, tuple) or len(made) != 2:
        raise SourceError(f"--model {spec}: returned {type(made).__name__}; return (module, inputs)")
    from torch import nn

    from graphs.capture.capture import capture

    module, inputs = made
    if not isinstance(module, nn.Module):
        raise SourceError(
            f"--model {spec}: the first thing returned is {type(module).__name__}; return (module, inputs) "
            "with a torch.nn.Module"
        )
    return capture(module, inputs, name=spec.rpartition(":")[2], family="model")


def _find_function(spec: str) -> Callable[[], Any]:
    module_name, separator, function_name = spec.partition(":")
    if not (separator and module_name and function_name):
        raise SourceError(f"--model {spec}: give package.module:function")
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        module = importlib.import_module(module_name)
    except Exception as error:
        raise SourceError(f"--model {spec}: cannot import '{module_name}': {_one_line(error)}") from error
    function = getattr(module, function_name, None)
    if not callable(function):
        raise SourceError(f"--model {spec}: module '{module_name}' has no function '{function_name}'")
    return function  # type: ignore[no-any-return]


def _call(spec: str, function: Callable[[], Any]) -> object:
    try:
        return function()
    except Exception as error:
        raise SourceError(f"--model {spec}: the function failed: {_one_line(error)}") from error


def _one_line(error: Exception) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
