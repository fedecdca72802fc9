"""The placements that an evaluation answers with: that of the best seed of each placer and order.

It hands them over: files beside each, exports, explanations.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from pathlib import Path
from typing import NamedTuple

from agent.evaluation.comparison.ratios import Where
from agent.evaluation.results import Trial, name_of
from agent.evaluation.spec import EvaluationSpec
from agent.placing.exports.export import EXPORTS, export_text, placed_modules
from agent.placing.handover.explain import CAPTURE, UNCOUNTED, data_parallel_changes, host_line
from agent.placing.handover.files import View, view_of
from agent.placing.handover.trace import write_trace
from envs.objective import PIPELINE, Objective
from envs.placements.files import read_placement, write_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.simulator.data_parallel import DataParallelStep
from envs.simulator.simulate import SimulatedStep
from graphs.capture.user_model import MODEL
from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, print_notice
from graphs.system.json_files import write_bytes_atomic

MOST_IN_MEMORY = 128
"""Placements that stay in memory with their steps, the last ones; with 100,000 ops, 2 MB each."""


class PlacedStep(NamedTuple):
    """A placement, and the simulated step under it."""

    placement: Placement
    step: SimulatedStep


@dataclass(frozen=True, eq=False)
class BestPlacement:
    """A placement of an evaluation.

    Attributes:
        trial: row of the best seed.
        objective: what the placement makes short.
        step: simulated step, as the objective makes it.
        path: file of the placement.
    """

    trial: Trial
    objective: Objective
    placement: Placement
    step: SimulatedStep
    path: Path

    @property
    def name(self) -> str:
        """The placer, with its order."""
        return name_of(self.trial.placer, self.trial.order)

    @property
    def problem(self) -> Problem:
        """The graph on the cluster; of a pipeline, the step of one microbatch."""
        return self.objective.problem

    @property
    def device_of(self) -> IntArray:
        """Device of each op, int64 (n_ops,)."""
        return self.placement.device_of

    @cached_property
    def view(self) -> View:
        """The placement and its step, to be told and handed on."""
        return view_of(self.objective, self.placement, self.step)


class Answers:
    """The answers of an evaluation: what this process found is in memory, all else in the folder."""

    def __init__(self, spec: EvaluationSpec, folder: Path) -> None:
        self.spec, self.folder = spec, folder
        self._graphs = {graph.name: graph for graph in spec.graphs}
        self._clusters = {cluster.name: cluster for cluster in spec.clusters}
        self._placed: dict[Path, PlacedStep] = {}
        self._data_parallel: dict[Where, DataParallelStep] = {}

    def add(self, trial: Trial, placed: PlacedStep) -> None:
        """Writes the placement of a trial that is the best of its seeds so far."""
        path = placement_path(self.folder, trial)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_placement(path, self._graphs[trial.graph], self._clusters[trial.cluster], placed.placement)
        self._remember(path, placed)

    def tell_damage(self, trials: Iterable[Trial]) -> None:
        """Prints a line if stored placements of trials are damaged or not there."""
        damage = []
        for path, trial in {placement_path(self.folder, each): each for each in trials}.items():
            try:
                if trial.is_placement:
                    read_placement(path, self._graphs[trial.graph], self._clusters[trial.cluster])
            except InputError as error:
                damage.append(str(error))
        if damage:
            more = f", and {len(damage) - 1} more are damaged" if len(damage) > 1 else ""
            print_notice(f"{damage[0]}{more}; remove the trial's lines from journal.jsonl to make it again")

    def best(self, trials: Sequence[Trial]) -> Iterator[BestPlacement]:
        """Yields the answers to each graph and cluster, in the order of the trials.

        Raises:
            FileFormatError, PlacementError: a file is damaged or not there.
        """
        best: dict[Where, dict[Path, Trial]] = defaultdict(dict)
        for trial in filter(lambda trial: trial.is_placement, trials):
            there, path = best[trial.graph, trial.cluster], placement_path(self.folder, trial)
            there[path] = min(there.get(path, trial), trial, key=lambda one: (one.rank, one.seed))
        for where, there in best.items():
            objective = self._objective(where)
            yield from (self._answer(trial, objective) for trial in there.values())

    def of(self, trial: Trial) -> BestPlacement:
        """Returns the answer of the best seed of a placer.

        Raises:
            FileFormatError, PlacementError: its file is damaged or not there.
            PipelineError: it is no pipeline.
        """
        return self._answer(trial, self._objective((trial.graph, trial.cluster)))

    def data_parallel(self, where: Where) -> DataParallelStep:
        """Returns the step of data parallelism on a graph and cluster."""
        if where not in self._data_parallel:
            self._data_parallel[where] = self._objective(where).data_parallel()
        return self._data_parallel[where]

    def data_parallel_changes(self, trials: Sequence[Trial]) -> str:
        """Says what data parallelism changes in the training; empty for pipelines, which cut batches too."""
        wheres = dict.fromkeys((trial.graph, trial.cluster) for trial in trials)
        if self.spec.pipeline is not None or not wheres:
            return ""
        n_replicas = [self.data_parallel(where).n_replicas for where in wheres]
        return data_parallel_changes([self._graphs[graph] for graph, _ in wheres], n_replicas)

    def host_line(self, trials: Sequence[Trial]) -> str:
        """Says which steps hosts take longer to issue than devices to run; empty if there are none."""
        shortest: dict[Where, Trial] = {}
        for trial in trials:
            if trial.feasible and trial.is_placement:
                where = trial.graph, trial.cluster
                shortest[where] = min(trial, shortest.get(where, trial), key=lambda one: one.step_time_s)
        lines = [line for trial in shortest.values() if (line := self._host_line(trial))]
        if len(shortest) == 1 or not lines:
            return "".join(lines)
        uncounted = UNCOUNTED * any(UNCOUNTED in line for line in lines)
        return (
            f"the host{uncounted} needs longer to issue {len(lines)} of {len(shortest)} steps than the "
            f"devices to run them: {CAPTURE}; until then no placement makes them shorter than that"
        )

    def _host_line(self, trial: Trial) -> str:
        objective = self._objective((trial.graph, trial.cluster))
        host_s, counts = objective.eager_host_s, objective.problem.cluster.issue_s > 0
        if trial.step_time_s > host_s * (1 + counts):  # then the devices alone take longer than the host
            return ""
        if not counts:
            return host_line(objective, trial.step_time_s)
        placement = self._answer(trial, objective).placement
        return host_line(objective, objective.without_host().simulate(placement).total_s)

    def _objective(self, where: Where) -> Objective:
        return self.spec.objective(self._graphs[where[0]], self._clusters[where[1]])

    def _answer(self, trial: Trial, objective: Objective) -> BestPlacement:
        path, problem = placement_path(self.folder, trial), objective.problem
        if path not in self._placed:
            placement = read_placement(path, problem.graph, problem.cluster)
            self._remember(path, PlacedStep(placement, objective.simulate(placement)))
        return BestPlacement(trial, objective, *self._placed[path], path)

    def _remember(self, path: Path, placed: PlacedStep) -> None:
        self._placed.pop(path, None)
        self._placed[path] = placed
        if len(self._placed) > MOST_IN_MEMORY:
            del self._placed[next(iter(self._placed))]


def placement_path(folder: Path, trial: Trial) -> Path:
    """Path of the placement of a trial; the file's stem is its placer and order."""
    stem = f"{trial.placer}.{trial.order}" if trial.order else trial.placer
    return (
        folder / "placements" / file_name(trial.cluster) / file_name(trial.graph) / f"{file_name(stem)}.json"
    )


def file_name(name: str) -> str:
    """Makes a name that every file system takes; a digest keeps changed names apart."""
    safe = re.sub(r"[^A-Za-z0-9._+-]", "_", name).lstrip(".")[:100]
    return safe if safe == name else f"{safe}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"


def write_handovers(answers: Answers, trials: Sequence[Trial], *, trace: bool) -> list[str]:
    """Writes files beside the placements of a model, and the traces of all placements if they are asked for.

    Returns:
        Lines: what bounds the best placement of the model on each cluster, or that one device does.
    """
    lines: list[str] = []
    for _, group in groupby(answers.best(trials), key=lambda each: (each.trial.graph, each.trial.cluster)):
        lines_of = {answer: told for answer in group if (told := _hand_over(answer, trace=trace))}
        if lines_of:
            best = min(lines_of, key=lambda answer: answer.trial.rank)
            lines += ["", f"{best.trial.graph} on {best.trial.cluster}, by {best.name}:", *lines_of[best]]
    return lines


def _hand_over(answer: BestPlacement, *, trace: bool) -> list[str]:
    """Writes the files of a placement; returns lines on what bounds it, none of a step of the benchmark."""
    folder, name = answer.path.parent, answer.path.stem
    if answer.problem.graph.family == MODEL or answer.objective.kind == PIPELINE:
        return answer.view.hand_over(folder, name)
    if trace:
        write_trace(folder / f"{name}.trace.json", answer.view.trace())
    return []


def write_exports(
    answers: Answers, trials: Sequence[Trial], names: Sequence[str], layers: str = ""
) -> tuple[list[str], list[str]]:
    """Writes each export of each placement, where the target can run it; `layers` as in `PlacedModules`.

    Returns:
        Lines: how many files of an export were written, and why others were not; exports without a file.
    """
    placed = [
        (answer, placed_modules(answer.objective, answer.placement, layers))
        for answer in answers.best(trials)
    ]
    lines, without = [], []
    for name in names:
        target, refused = EXPORTS[name], Counter[str]()
        for answer, modules in placed:
            try:
                text = export_text(name, modules)
            except InputError as error:
                refused[str(error)] += 1
            else:
                write_bytes_atomic(answer.path.with_suffix(target.ending), text.encode())
        written = len(placed) - refused.total()
        lines.append(f"export {name}: {written} of {len(placed)} placements have a file *{target.ending}")
        lines += (f"export {name}: not for {count}: {reason}" for reason, count in refused.items())
        without += [] if written else [name]
    return lines, without
