"""Captured graphs that are kept in a folder."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from importlib.metadata import version
from pathlib import Path

import graphs.capture
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph


class GraphCache:
    """Captured graphs in a folder, each captured once.

    A change of the code of the capture or of torch makes another folder.

    Args:
        folder: holds the folder of the graphs.
        notify: what to do with a line about a capture that begins.
    """

    def __init__(self, folder: Path, notify: Callable[[str], None] = print) -> None:
        self.folder = folder / f"graphs-{_capture_hash()}"
        self.notify = notify
        self._graphs: dict[str, OpGraph] = {}

    def graph(self, name: str, capture: Callable[[], OpGraph]) -> OpGraph:
        """Returns a graph by its name; reads or captures it the first time."""
        if name not in self._graphs:
            path = self.folder / f"{name}.json.gz"
            if path.exists():
                (self._graphs[name],) = read_graphs(path)
            else:
                self.notify(f"capturing {name}")
                self._graphs[name] = capture()
                self.folder.mkdir(parents=True, exist_ok=True)
                write_graphs(path, [self._graphs[name]])
        return self._graphs[name]


def _capture_hash() -> str:
    """Eight hexadecimal digits that change with what makes the graphs."""
    files = sorted(Path(graphs.capture.__path__[0]).glob("*.py"))
    text = b"".join(path.read_bytes() for path in files)
    return sha256(text + version("torch").encode()).hexdigest()[:8]
