"""The rows of an evaluation: a journal that survives a crash, and `results.csv` made from it."""

from __future__ import annotations

import csv
import io
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from graphs.io.json_files import write_bytes_atomic

COLUMNS = (
    "graph",
    "family",
    "cluster",
    "order",
    "placer",
    "seed",
    "step_time_s",
    "feasible",
    "evaluations",
    "wall_s",
    "lower_bound_s",
    "ratio_to_single",
    "ratio_to_best",
)


class ResultsError(ValueError):
    """A journal that this program did not write; the message says where."""


Key = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Trial:
    """One run of a placer on one graph and cluster.

    Attributes:
        order: in which the policy visited ops; empty for other placers.
        step_time_s: of the placement found, feasible or not.
        evaluations, wall_s: what the placer used.
        lower_bound_s: no placement has a shorter step.
        single_s: step time of the fastest single device, its memory unlimited.
        seen: whether the evaluation's policy was trained on the graph.
    """

    graph: str
    family: str
    cluster: str
    order: str
    placer: str
    seed: int
    step_time_s: float
    feasible: bool
    evaluations: int
    wall_s: float
    lower_bound_s: float
    single_s: float
    seen: bool

    @property
    def key(self) -> Key:
        """Identity of a trial within an evaluation."""
        return (self.graph, self.cluster, self.placer, self.order, self.seed)

    @property
    def ratio_to_single(self) -> float | None:
        """Step time over that of the fastest single device; None where it is out of memory."""
        return self.step_time_s / self.single_s if self.feasible and self.single_s else None

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts placements of one graph and cluster, the best first."""
        return (not self.feasible, self.step_time_s)


class Journal:
    """Trials in a file, one JSON object a line, each on disk before `add` returns.

    A last line that a crash cut short is dropped when the file is opened again.

    Raises:
        ResultsError: on construction, if another line holds no trial.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trials: dict[Key, Trial] = {}
        whole = path.read_bytes().rpartition(b"\n")[0] + b"\n" if path.exists() else b""
        for number, line in enumerate(filter(None, whole.split(b"\n")), start=1):
            try:
                trial = Trial(**json.loads(line))
            except (ValueError, TypeError):
                raise ResultsError(f"{path}:{number}: is no trial; evaluate into another directory") from None
            self.trials[trial.key] = trial
        self._file = path.open("ab")
        self._file.truncate(len(whole) if whole.strip() else 0)

    def add(self, trial: Trial) -> None:
        """Append a trial."""
        self._file.write(json.dumps(asdict(trial), allow_nan=False).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())
        self.trials[trial.key] = trial

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def best_times(trials: Iterable[Trial]) -> dict[tuple[str, str], float]:
    """Shortest step time of each (graph, cluster) among the feasible placements."""
    best: dict[tuple[str, str], float] = {}
    for trial in trials:
        if trial.feasible:
            case = (trial.graph, trial.cluster)
            best[case] = min(best.get(case, trial.step_time_s), trial.step_time_s)
    return best


def ratio_to_best(trial: Trial, best: Mapping[tuple[str, str], float]) -> float | None:
    """Step time over the best of its graph and cluster; None where it is out of memory."""
    fastest = best.get((trial.graph, trial.cluster))
    if not trial.feasible or fastest is None:
        return None
    return trial.step_time_s / fastest if fastest else 1.0


def write_results(path: Path, trials: Sequence[Trial]) -> None:
    """Write `results.csv` atomically; ratios are empty for placements that are out of memory."""
    best = best_times(trials)
    rows = []
    for trial in trials:
        row = asdict(trial) | {
            "feasible": str(trial.feasible).lower(),
            "ratio_to_single": trial.ratio_to_single,
            "ratio_to_best": ratio_to_best(trial, best),
        }
        rows.append([row[column] for column in COLUMNS])
    write_csv(path, COLUMNS, rows)


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Write a table atomically; None is an empty cell, floats are exact."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    write_bytes_atomic(path, text.getvalue().encode())
