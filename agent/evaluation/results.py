"""The rows of an evaluation: a journal that survives a crash, `results.csv` made from it, and failures."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

from agent.placers.improvements import Improvement
from agent.placing.request import DATA_PARALLEL
from graphs.system import json_fields
from graphs.system.csv_files import write_csv
from graphs.system.errors import InputError, printable, shown
from graphs.system.interrupts import interrupts_put_off
from graphs.system.json_files import FileFormatError, Journal

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
    "granularity",
    "cpu_s",
    "pipeline",
    "microbatches",
    "throughput_per_s",
    "bubble_share",
)


OPTIONAL = frozenset(
    {"improvements", "cpu_s", "single_fits", "pipeline", "microbatches", "throughput_per_s", "bubble_share"}
)
"""Fields of a trial that older journals lack."""


Key = tuple[str, str, str, str, int]


@dataclass(frozen=True)
class Trial:
    """One run of a placer on one graph and cluster, or what data parallelism would do there.

    Data parallelism is no placement: it computes a batch on each of its devices, and its step time is that of
    a step over the number of batches. So it may be below the lower bound, and is never the best placement.

    Attributes:
        order: order in which the policy visited ops; empty for other placers.
        step_time_s: seconds of the step under the placement found, feasible or not.
        evaluations, wall_s, cpu_s: what the placer used: placements simulated, seconds, processor seconds of
            all threads.
        lower_bound_s: no feasible placement has a shorter step; the same in all rows of a graph and cluster.
        single_s: step time of the fastest single device that has the memory; where none has, of the fastest.
        single_fits: whether that device has the memory.
        seen: what the evaluation's policy was shown of the graph in training: "yes", "topology" or "no".
        pipeline: schedule of a pipeline; empty for one batch at a time.
        microbatches: in a step; 1 for one batch at a time.
        bubble_share: share of the devices' time in the step in which they compute nothing; 0 where unknown.
        improvements: when the best feasible placement got better, thinned; empty where that is unknown.
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
    seen: str
    granularity: str = "op"
    cpu_s: float = 0.0
    single_fits: bool = True
    pipeline: str = ""
    microbatches: int = 1
    throughput_per_s: float = 0.0
    bubble_share: float = 0.0
    improvements: tuple[Improvement, ...] = field(default=(), compare=False)

    @property
    def key(self) -> Key:
        """Identity of a trial within an evaluation."""
        return (self.graph, self.cluster, self.placer, self.order, self.seed)

    @property
    def history(self) -> tuple[Improvement, ...]:
        """The improvements; the result alone where none are known, nothing if it is infeasible."""
        if not self.feasible:
            return ()
        return self.improvements or (Improvement(self.evaluations, self.wall_s, self.step_time_s),)

    @property
    def is_placement(self) -> bool:
        """Says whether a placer found a placement, unlike data parallelism."""
        return self.placer != DATA_PARALLEL

    @property
    def ratio_to_single(self) -> float | None:
        """Step time over that of the fastest single device; None where it is out of memory."""
        return self.step_time_s / self.single_s if self.feasible and self.single_s else None

    @property
    def rank(self) -> tuple[bool, float]:
        """Sorts placements of one graph and cluster, the best first."""
        return (not self.feasible, self.step_time_s)


def name_of(placer: str, order: str) -> str:
    """Names a placer, with the order that it visits ops in."""
    return f"{placer} {order}".strip()


class TrialJournal:
    """The trials of an evaluation in a journal.

    Args:
        keys: of the trials that it may hold; None = any.

    Raises:
        JournalError: on construction, if a line holds no such trial.
    """

    def __init__(self, path: Path, keys: Container[Key] | None = None) -> None:
        self.trials: dict[Key, Trial] = {}
        self._keys = keys
        self._journal = Journal(path, self._read)

    def add(self, trial: Trial) -> None:
        """Appends a trial; it is on disk when this returns."""
        with interrupts_put_off():
            self._journal.append(asdict(trial))
            self.trials[trial.key] = trial

    def _read(self, value: object, where: str) -> None:
        record = json_fields.fields(value, where, _CHECKS.keys() - OPTIONAL, OPTIONAL)
        checked = {name: check for name, check in _CHECKS.items() if name in record}
        trial = Trial(**{name: check(record[name], f"{where}: {name}") for name, check in checked.items()})
        if trial.step_time_s == 0 < trial.single_s:
            raise FileFormatError(f"{where}: step_time_s is 0; expected more, as one device takes time")
        if self._keys is not None and trial.key not in self._keys:
            raise FileFormatError(f"{where}: is no trial of this evaluation")
        self.trials[trial.key] = trial


def _amount(value: object, where: str) -> float:
    if (amount := json_fields.number(value, where)) < 0:
        raise FileFormatError(f"{where}: is {amount}; expected at least 0")
    return amount


def _truth(value: object, where: str) -> bool:
    if not isinstance(value, bool):
        raise FileFormatError(f"{where}: is {json_fields.quoted(value)}; expected true or false")
    return value


def _improvements(value: object, where: str) -> tuple[Improvement, ...]:
    improvements = tuple(_improvement(item, where) for item in json_fields.array(value, where))
    for before, after in pairwise(improvements):
        is_later = before.evaluations <= after.evaluations and before.seconds <= after.seconds
        if not is_later or before.step_time_s <= after.step_time_s:
            raise FileFormatError(f"{where}: are out of order; each must be later and faster than the last")
    return improvements


def _improvement(value: object, where: str) -> Improvement:
    item = json_fields.array(value, where)
    if len(item) != len(Improvement._fields):
        raise FileFormatError(f"{where}: has an item of {len(item)}; expected {len(Improvement._fields)}")
    return Improvement(json_fields.integer(item[0], where), *(_amount(part, where) for part in item[1:]))


_CHECKS: Mapping[str, Callable[[object, str], Any]] = {
    item.name: {
        "str": json_fields.text,
        "int": json_fields.integer,
        "float": _amount,
        "bool": _truth,
        "tuple[Improvement, ...]": _improvements,
    }[str(item.type)]
    for item in fields(Trial)
}
"""Check of each field of a trial in the journal."""


def with_greatest_bounds(trials: Sequence[Trial]) -> list[Trial]:
    """Gives all trials of a graph and cluster the greatest lower bound that any of them knows.

    A placer that proves a bound, as `exact` does, raises it for all.
    """
    greatest: dict[tuple[str, str], float] = {}
    for trial in trials:
        case = (trial.graph, trial.cluster)
        greatest[case] = max(greatest.get(case, 0.0), trial.lower_bound_s)
    return [replace(trial, lower_bound_s=greatest[trial.graph, trial.cluster]) for trial in trials]


def best_times(trials: Iterable[Trial]) -> dict[tuple[str, str], float]:
    """Shortest step time of each (graph, cluster) among the feasible placements."""
    best: dict[tuple[str, str], float] = {}
    for trial in trials:
        if trial.feasible and trial.is_placement:
            case = (trial.graph, trial.cluster)
            best[case] = min(best.get(case, trial.step_time_s), trial.step_time_s)
    return best


def ratio_to_best(trial: Trial, best: Mapping[tuple[str, str], float]) -> float | None:
    """Step time over that of the best placement of its graph and cluster; None where it is out of memory."""
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
        if not trial.pipeline:
            row |= dict.fromkeys(("microbatches", "throughput_per_s", "bubble_share"), None)
        rows.append([row[column] for column in COLUMNS])
    write_csv(path, COLUMNS, rows)


FAILURES, FAILURES_LOG = "failures.csv", "failures.log"
"""Names of the files in the folder of an evaluation."""
FAILURE_COLUMNS = ("graph", "cluster", "placer", "order", "seed", "tries", "reason")


@dataclass(frozen=True)
class Failure:
    """A trial that could not be made.

    Attributes:
        key: identity of the trial within the evaluation.
        tries: number of times that it was tried.
        reason: one printable line.
        details: traceback of an unexpected exception; else empty.
    """

    key: Key
    tries: int
    reason: str
    details: str = ""


def failure_of(key: Key, error: Exception) -> Failure:
    """Describes the exception that ended a trial; it is not tried again, as it would end in the same way."""
    text = shown(" ".join(f"{type(error).__name__}: {error}".split()).removesuffix(":"))
    details = "" if isinstance(error, InputError) else "".join(traceback.format_exception(error))
    return Failure(key, 1, text, details)


def write_failures(folder: Path, failures: Iterable[Failure]) -> None:
    """Writes `failures.csv` atomically, or removes it where no trial failed."""
    rows = [(*failure.key, failure.tries, failure.reason) for failure in failures]
    if rows:
        write_csv(folder / FAILURES, FAILURE_COLUMNS, rows)
    else:
        (folder / FAILURES).unlink(missing_ok=True)


def log_details(folder: Path, failure: Failure) -> None:
    """Appends the traceback of a failure to `failures.log`, if it has one."""
    if failure.details:
        graph, cluster, placer, order, seed = failure.key
        heading = f"{name_of(placer, order)}, seed {seed}, on graph {graph} and cluster {cluster}"
        lines = [heading, *failure.details.splitlines(), ""]
        with (folder / FAILURES_LOG).open("a", encoding="utf-8") as file:
            file.writelines(f"{printable(line)}\n" for line in lines)


def failed_line(n_failed: int) -> str:
    """Says how many trials failed, and where the reasons are."""
    return f"{n_failed} {'trial' if n_failed == 1 else 'trials'} failed; see {FAILURES}"
