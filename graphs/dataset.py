"""The captured benchmark set: `graphs/data/FAMILY.jsonl.gz` and a manifest that says how each was made.

`python -m graphs.dataset` checks the shipped set and prints what is in it; `--build` captures it anew.
Trainings split graphs by use.
"""

from __future__ import annotations

import hashlib
import platform
import subprocess
import sys
import tomllib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from graphs.families import FAMILIES, SHIPPED, draw
from graphs.identity import content_hash
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.op_graph import OpGraph
from graphs.system.command_line import OneLineParser, interruptible, run_command
from graphs.system.errors import InputError
from graphs.system.json_fields import fields
from graphs.system.json_files import read_json, write_json_atomic

if TYPE_CHECKING:
    from rich.table import Table

FORMAT = "placewalk.dataset/1"
NAME = "python -m graphs.dataset"
FOLDER = Path(__file__).parent / "data"
REBUILD = "rebuild it with `python -m graphs.dataset --build`"


class DatasetError(InputError):
    """A benchmark set that is incomplete or was changed; the message says where."""


def load_family(name: str, folder: Path = FOLDER) -> list[OpGraph]:
    """Graphs of one family of the benchmark set, by seed; captures those of a plug-in that it lacks.

    Raises:
        FamilyError: there is no such family.
        DatasetError: its file is not the one the manifest describes.
    """
    entry = read_manifest(folder).get(FAMILIES.check(name))
    path = folder / f"{name}.jsonl.gz"
    if entry is None and name not in SHIPPED:
        print(f"capturing {FAMILIES[name]} graphs of '{name}'; {NAME} --build keeps them", file=sys.stderr)
        return [capture_draw(name, seed) for seed in range(FAMILIES[name])]
    if entry is None or not path.is_file():
        raise DatasetError(f"{folder}: has no graphs of family '{name}'; {REBUILD}")
    if hashlib.sha256(path.read_bytes()).hexdigest() != entry["sha256"]:
        raise DatasetError(f"{path}: is not the file that the manifest describes; {REBUILD}")
    return read_graphs(path)


def load_graphs(families: Iterable[str], folder: Path = FOLDER) -> list[OpGraph]:
    """Graphs of several families of the benchmark set, in the order given.

    Raises:
        FamilyError, DatasetError: as `load_family` does.
    """
    names = [FAMILIES.check(name) for name in families]
    return [graph for name in names for graph in load_family(name, folder)]


def read_manifest(folder: Path = FOLDER) -> dict[str, Any]:
    """Reads the manifest: per family `versions`, file `sha256` and `graphs` (name, seed, ops, tensors, hash).

    Families of plug-ins that are not there are left out.

    Raises:
        DatasetError, FileFormatError: the folder holds no manifest of this format.
    """
    path = folder / "manifest.json"
    if not path.is_file():
        raise DatasetError(f"{folder}: has no manifest.json; {REBUILD}")
    manifest = read_json(path)
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DatasetError(f"{path}: is no {FORMAT} manifest; {REBUILD}")
    families = fields(manifest, str(path), frozenset({"format", "families"}))["families"]
    if not isinstance(families, dict):
        raise DatasetError(f"{path}: families is no object; {REBUILD}")
    keys = frozenset({"versions", "sha256", "graphs"})
    entries = {name: fields(entry, f"{path}: {name}", keys) for name, entry in families.items()}
    return {name: entry for name, entry in entries.items() if name in FAMILIES}


def capture_draw(family: str, seed: int) -> OpGraph:
    """Capture the training step, with Adam, of one draw of a family.

    The shipped graphs do not say `dtype`, `gemm`, `image`, `source` and `shape`: they are what they were
    before graphs could.

    Raises:
        FamilyError: unknown family or negative seed.
    """
    from graphs.capture.capture import capture

    module, inputs = draw(family, seed)
    quiet: dict[str, Any] = {"notify": lambda line: None}  # the loss of a family is the mean of its outputs
    graph = capture(module, inputs, optimizer="adam", name=f"{family}-{seed:02d}", **quiet)
    unsaid: dict[str, Any] = dict.fromkeys(("dtypes", "sources", "shapes"), ())
    return replace(graph, family=family, gemm=graph.gemm[:0], image=graph.image[:0], **unsaid)


def build_family(family: str, folder: Path = FOLDER, draws: int | None = None) -> Iterator[OpGraph]:
    """Captures a family and yields each graph; after the last, writes its file and its manifest entry.

    Args:
        draws: seeds 0 to draws - 1 are captured; by default all of the family.

    Raises:
        FamilyError: there is no such family.
        DatasetError: `draws` is less than 1.
    """
    count = FAMILIES[family] if draws is None else draws
    if count < 1:
        raise DatasetError(f"family '{family}': cannot build {count} graphs; ask for at least 1 draw")
    graphs = []
    for seed in range(count):
        graphs.append(capture_draw(family, seed))
        yield graphs[-1]
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{family}.jsonl.gz"
    write_graphs(path, graphs)
    # Without the local tag: +cpu or +cu130 makes no difference to a capture.
    torch = metadata.version("torch").split("+")[0]
    rows = [
        {"name": graph.name, "seed": seed, "ops": graph.n_ops, "tensors": graph.n_tensors}
        | {"sha256": content_hash(graph)}
        for seed, graph in enumerate(graphs)
    ]
    entry = {
        "versions": {"placewalk": project_version(), "python": platform.python_version(), "torch": torch},
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        "graphs": rows,
    }
    entries = read_manifest(folder) if (folder / "manifest.json").is_file() else {}
    entries[family] = entry
    ordered = {name: entries[name] for name in FAMILIES if name in entries}
    write_json_atomic(folder / "manifest.json", {"format": FORMAT, "families": ordered})


def kept_bytes(graph: OpGraph) -> float:
    """Sums the bytes of forward results that the backward pass reads: the activations that a step keeps."""
    phases = np.array(graph.phases)
    tensor = np.repeat(np.arange(graph.n_tensors), np.diff(graph.consumers.ptr))
    read_back = np.unique(tensor[phases[graph.consumers.items] == "backward"])
    producer = graph.tensor_producer[read_back]
    made_forward = (phases[producer] == "forward") & ~graph.is_source[producer]
    return float(graph.tensor_bytes[read_back[made_forward]].sum())


def summary(families: Iterable[str], folder: Path = FOLDER) -> Table:
    """One row per family: graphs, ops, and medians of step GFLOPs, resident GB and kept activations in GB."""
    from rich.table import Table

    table = Table("family", "graphs", "ops min", "median", "max", title="benchmark set")
    for column in ("GFLOP", "resident GB", "activations GB", "largest GB"):
        table.add_column(column, justify="right")
    for name in families:
        graphs = load_family(name, folder)
        ops = [graph.n_ops for graph in graphs]
        resident = np.array([graph.resident_bytes.sum() for graph in graphs]) / 1e9
        kept_gb = np.array([kept_bytes(graph) for graph in graphs]) / 1e9
        flops = np.median([graph.flops.sum() for graph in graphs]) / 1e9
        counts = (len(graphs), min(ops), int(np.median(ops)), max(ops))
        amounts = (f"{flops:.0f}", *(f"{x:.2f}" for x in (np.median(resident), np.median(kept_gb))))
        table.add_row(name, *map(str, counts), *amounts, f"{(resident + kept_gb).max():.1f}")
    return table


@dataclass(frozen=True)
class Split:
    """Graphs by use; `validation` chooses among policies, `held_out` is only ever reported on."""

    train: tuple[OpGraph, ...]
    validation: tuple[OpGraph, ...]
    held_out: tuple[OpGraph, ...]


def split_graphs(graphs: Sequence[OpGraph], *, holdout: float, validation: float) -> Split:
    """Splits each family by position: of `k = round(1 / holdout)` graphs the last is held out.

    Of the graphs left, every `round((1 - holdout) / validation)`-th, from the second on, is for validation:
    with shares of 1/4 and 1/8, 24 graphs give 15, 3 and 6. A share of 0 takes none. The first graph of a
    family is always trained on.
    """
    by_family = defaultdict(list)
    for graph in graphs:
        by_family[graph.family].append(graph)
    parts: tuple[list[OpGraph], list[OpGraph], list[OpGraph]] = ([], [], [])
    most = len(graphs) + 1
    period = round(min(1 / holdout, most)) if holdout else 0
    stride = round(min((1 - holdout) / validation, most)) if validation else 0
    for members in by_family.values():
        held_out = [graph for index, graph in enumerate(members) if period and index % period == period - 1]
        rest = [graph for index, graph in enumerate(members) if not (period and index % period == period - 1)]
        chosen = [graph for index, graph in enumerate(rest) if stride > 1 and index % stride == 1]
        parts[0].extend(graph for graph in rest if graph not in chosen)
        parts[1].extend(chosen)
        parts[2].extend(held_out)
    return Split(tuple(parts[0]), tuple(parts[1]), tuple(parts[2]))


def main(arguments: Sequence[str] | None = None) -> int:
    """Command line; returns the exit code."""
    return run_command(NAME, lambda: _run(arguments))


def _run(arguments: Sequence[str] | None) -> int:
    from rich.console import Console

    parser = OneLineParser(prog=NAME, description=__doc__)
    parser.add_argument("--build", action="store_true", help="capture the graphs again and write the files")
    parser.add_argument("--families", nargs="+", default=list(FAMILIES), metavar="NAME", help="default: all")
    parser.add_argument("--draws", type=int, metavar="N", help="only the first N draws of each family")
    parser.add_argument("--out", type=Path, default=FOLDER, metavar="DIR", help="default: %(default)s")
    options = parser.parse_args(arguments)
    families = [FAMILIES.check(name) for name in options.families]
    with interruptible():
        if options.build:
            _build(families, options.out, options.draws)
        Console().print(summary(families, options.out))
    return 0


def _build(families: Sequence[str], folder: Path, draws: int | None) -> None:
    from rich.progress import MofNCompleteColumn, Progress, TimeElapsedColumn

    with Progress(*Progress.get_default_columns(), MofNCompleteColumn(), TimeElapsedColumn()) as progress:
        for family in families:
            task = progress.add_task(family, total=FAMILIES[family] if draws is None else draws)
            for graph in build_family(family, folder, draws):
                progress.update(task, advance=1, description=f"{graph.name}: {graph.n_ops} ops")
            progress.update(task, description=family)


def project_version() -> str:
    """Returns the version of this project: that of the checkout, which may be newer than its installation."""
    project = Path(__file__).parents[1] / "pyproject.toml"
    if project.is_file():
        return str(tomllib.loads(project.read_text())["project"]["version"])
    return metadata.version("placewalk")


def git_commit() -> str | None:
    """Returns the hash of the commit that is checked out; None if this is no checkout."""
    root, command = Path(__file__).parents[1], ["git", "rev-parse", "HEAD"]
    if not (root / ".git").exists():  # an environment may be in a checkout of something else
        return None
    try:
        answer = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return answer.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
