"""Loads the graphs that a command line names: families, files, or a model of the user's own."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from graphs.capture.user_model import SourceError, capture_model
from graphs.dataset import load_graphs
from graphs.io.graph_files import read_graphs
from graphs.op_graph import OpGraph


def gather_graphs(
    families: Sequence[str],
    files: Sequence[str],
    model: str | None,
    limit_bytes: int,
    *,
    optimizer: str = "adam",
    training: bool = True,
) -> tuple[OpGraph, ...]:
    """Load every graph that a command line names: families first, then files, then the model.

    Args:
        limit_bytes: greatest size of a file that is decompressed.
        optimizer, training: of the model's step, as `graphs.capture.capture` takes them.

    Raises:
        SourceError: no source at all, two graphs of one name, or a model that cannot be loaded.
        ValueError: what the readers of families and files raise.
    """
    if not families and not files and model is None:
        raise SourceError("no graphs; give --families, --graphs or --model")
    graphs = load_graphs(dict.fromkeys(families))
    graphs += [graph for path in dict.fromkeys(files) for graph in read_graphs(path, limit_bytes=limit_bytes)]
    if model is not None:
        graphs.append(capture_model(model, optimizer=optimizer, training=training).graph)
    _check_names(graphs)
    return tuple(graphs)


def _check_names(graphs: Iterable[OpGraph]) -> None:
    seen: set[str] = set()
    for graph in graphs:
        if graph.name in seen:
            raise SourceError(f"two graphs are named '{graph.name}'; results are stored by name; rename one")
        seen.add(graph.name)
