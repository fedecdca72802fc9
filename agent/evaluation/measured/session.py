"""Measurements of an evaluation: the seconds of ops, the best placements, and the fidelity of the
simulator; as rows and as lines of text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from itertools import count, groupby
from pathlib import Path

import numpy as np

from agent.adaptation.adapt import adapt
from agent.adaptation.corrections import models_of
from agent.calibration.quick import get_or_measure_cluster
from agent.evaluation.answers import Answers, file_name
from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.measured.fidelity import FidelityRow, fidelity_of, measure_fidelity, measured_cells
from agent.evaluation.results import Trial, name_of
from agent.evaluation.spec import EvaluationSpec
from agent.evaluation.terminal_report import text_table
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.placements.files import write_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses, torch_devices
from envs.runtime.profiles import with_profile
from envs.runtime.runnable_model import RunnableModel, load_runnable
from envs.runtime.step_meter import StepMeter, StepTimeStore
from envs.simulator.simulate import step_time_s
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_rows

ADAPTED = "adapted"
"""Folder of the placement with the shortest measured step on each cluster."""
Report = Callable[[str, int, int], None]
"""Called with what is measured, how much of it is done, and how much there is in all."""
Placed = tuple[Trial, IntArray]
"""A trial, and the device of each op, (n_ops,)."""


@dataclass(frozen=True)
class MeasuredRow:
    """One placement of an evaluation, simulated and measured.

    Attributes:
        simulated_s: step time that the evaluation gave it.
        measured_s, low_s, high_s: median, first and ninth decile of the measured step times; None if it could
            not be run.
        failure: why it could not be run, or "".
    """

    graph: str
    cluster: str
    granularity: str
    placer: str
    order: str
    seed: int
    simulated_s: float
    measured_s: float | None
    low_s: float | None
    high_s: float | None
    n_steps: int
    failure: str


def check_can_measure(config: EvaluationConfig) -> None:
    """Checks whether the model of an evaluation can be measured on its clusters, before it is captured.

    Raises:
        EvaluationError: there is no `--model`, or it is costed in another precision than it runs in.
        ExecutionError: this machine lacks a device of a cluster.
        ClusterError: an unknown cluster.
    """
    if config.model is None:
        raise EvaluationError("measuring needs a model; give --model PKG.MOD:FUNCTION")
    if config.precision is not None:
        raise EvaluationError(
            "--precision changes costs, not the model that is measured; capture it under autocast instead"
        )
    if config.prompt is not None:
        raise EvaluationError(
            "--prompt places a step without weights, which cannot be measured; leave it out"
        )
    for name in config.cluster or (DEFAULT_CLUSTER,):
        torch_devices(get_or_measure_cluster(name))


class MeasuringSession:
    """Measures the model of an evaluation on the devices that its clusters are.

    Args:
        clusters: all of them devices of this machine.
        folder: of the evaluation; measurements are kept in it, and none is made twice.
        timeout_s: seconds after which a placement that is measured has taken too long.

    Raises:
        EvaluationError: there is no `--model`, or it is costed in another precision than it runs in.
        ExecutionError: this machine lacks a device of a cluster.
        ValueError: the model cannot be captured.
    """

    def __init__(
        self, config: EvaluationConfig, clusters: Sequence[Cluster], folder: Path, timeout_s: float
    ) -> None:
        check_can_measure(config)
        assert config.model is not None
        self._devices = {cluster.name: torch_devices(cluster) for cluster in clusters}
        self._folder, self._timeout_s = folder, timeout_s
        self._model: RunnableModel = load_runnable(
            config.model,
            **config.capture_settings,
            split=None if config.split is None else int(config.split),
            batch_dim=config.batch_dim,
            gpu=gpus_of(clusters),
            names=config.split_inputs,
        )

    @property
    def name(self) -> str:
        """Name of the graph that is measured."""
        return self._model.captured.graph.name

    def profile(self, spec: EvaluationSpec, report: Report) -> EvaluationSpec:
        """Times every op of the model on each kind of device; returns the evaluation with these costs.

        The times are kept beside those of this machine, so that an evaluation which goes on has the same.
        """
        graph = with_profile(
            self._graph(spec),
            self._model,
            spec.clusters,
            timeout_s=self._timeout_s,
            report=lambda done, total: report("ops", done, total),
        )
        others = (graph if one.name == self.name else one for one in spec.graphs)
        return replace(spec, graphs=tuple(others), whole={})  # whole batches are not timed

    def best(
        self, answers: Answers, trials: Sequence[Trial], most: int, report: Report, *, adapts: bool = False
    ) -> list[str]:
        """Measures one device, and the best placements that the trials found; writes `measured.csv`.

        Args:
            most: greatest number of different placements per cluster, the shortest simulated steps first.
            adapts: whether each measurement corrects the costs that the next placement is found with. The
                first placement is the same. That of the shortest measured step is written to `adapted/`.

        Returns:
            Lines to print: a table per cluster, the shortest measured step first.
        """
        rows: list[MeasuredRow] = []
        graph = self._graph(answers.spec)
        for cluster in answers.spec.clusters:
            placed, tell = self._found(answers, cluster, trials), partial(report, f"steps on {cluster.name}")
            single = [pair for pair in placed if pair[0].placer == "single"]
            with self._measurements(cluster) as measurements:
                if adapts and placed:
                    problem = answers.spec.objective(graph, cluster).problem
                    placed = adapted(problem, placed, measurements, most, tell)
                chosen = placed[:most]
                chosen += [pair for pair in single if pair[0] not in [trial for trial, _ in chosen]]
                measured = list(_measured_rows(chosen, measurements, tell))
            if adapts:
                self._write_shortest(graph, cluster, measured, chosen)
            rows += measured
        write_rows(self._folder / "measured.csv", MeasuredRow, rows)
        return _measured_lines(rows)

    def fidelity(self, spec: EvaluationSpec, count: int, report: Report) -> list[str]:
        """Simulates and measures varied placements on every cluster; writes `fidelity.csv`.

        Returns:
            Lines to print: how true the simulator was, a paragraph per cluster.
        """
        rows: list[FidelityRow] = []
        for cluster in spec.clusters:
            problem = spec.objective(self._graph(spec), cluster).problem
            tell = partial(report, f"placements on {cluster.name}")
            with self._measurements(cluster) as measurements:
                rows += measure_fidelity(problem, measurements, count, spec.granularity, tell)
        write_rows(self._folder / "fidelity.csv", FidelityRow, rows)
        return _fidelity_lines(rows)

    def _found(self, answers: Answers, cluster: Cluster, trials: Sequence[Trial]) -> list[Placed]:
        """Lists the different placements of a cluster, the best first."""
        there = [trial for trial in trials if (trial.graph, trial.cluster) == (self.name, cluster.name)]
        different: dict[bytes, Placed] = {}
        for answer in sorted(answers.best(there), key=lambda best: best.trial.rank):
            different.setdefault(answer.device_of.tobytes(), (answer.trial, answer.device_of))
        return list(different.values())

    def _write_shortest(
        self, graph: OpGraph, cluster: Cluster, rows: Sequence[MeasuredRow], placed: Sequence[Placed]
    ) -> None:
        """Writes the placement of the shortest measured step, if one could be run."""
        ran = [(row.measured_s, number) for number, row in enumerate(rows) if row.measured_s is not None]
        if ran:
            path = self._folder / ADAPTED / f"{file_name(cluster.name)}.json"
            path.parent.mkdir(parents=True, exist_ok=True)
            write_placement(path, graph, cluster, Placement(placed[min(ran)[1]][1]))

    def _graph(self, spec: EvaluationSpec) -> OpGraph:
        return next(graph for graph in spec.graphs if graph.name == self.name)

    @contextmanager
    def _measurements(self, cluster: Cluster) -> Iterator[StepTimeStore]:
        model, devices = self._model, self._devices[cluster.name]
        with DeviceProcesses(devices, self._timeout_s) as processes:
            meter = StepMeter(model.captured, model.module, model.inputs, processes)
            yield StepTimeStore(self._folder / "measurements.jsonl", meter, devices)


def adapted(
    problem: Problem,
    placed: Sequence[Placed],
    measurements: StepTimeStore,
    n_measured: int,
    report: Callable[[int, int], None],
) -> list[Placed]:
    """Measures the best placement, and others that are found with corrected costs.

    Args:
        placed: different placements of the trials, the best first.
        report: called with (measurements made, measurements in all) before each.

    Returns:
        What was measured, in that order; fewer than `n_measured` where the searches find no others. New
        placements are trials of a placer `adapt`, and their seed is their number.
    """
    made = count()

    def measure(device_of: IntArray) -> float:
        report(next(made), n_measured)
        return measurements.measure(device_of).median_s

    trials = {device_of.tobytes(): trial for trial, device_of in placed}
    starts = [device_of for trial, device_of in placed if trial.feasible] or [placed[0][1]]
    devices_of, _ = adapt(models_of(problem), starts, measure, n_measured, np.random.default_rng(0))
    new = replace(placed[0][0], placer="adapt", order="")
    return [
        (
            trials.get(devices.tobytes())
            or replace(new, seed=number, step_time_s=step_time_s(problem, devices)),
            devices,
        )
        for number, devices in enumerate(devices_of)
    ]


def _measured_rows(
    placed: Sequence[Placed], measurements: StepTimeStore, report: Callable[[int, int], None]
) -> Iterator[MeasuredRow]:
    for done, (trial, device_of) in enumerate(placed):
        report(done, len(placed))
        yield MeasuredRow(
            graph=trial.graph,
            cluster=trial.cluster,
            granularity=trial.granularity,
            placer=trial.placer,
            order=trial.order,
            seed=trial.seed,
            simulated_s=trial.step_time_s,
            **measured_cells(measurements.measure(device_of)),
        )
    report(len(placed), len(placed))


HEADINGS = ("placer", "simulated ms", "measured ms", "10 % to 90 %")


def _measured_lines(rows: Sequence[MeasuredRow]) -> list[str]:
    lines: list[str] = []
    for cluster, group in groupby(rows, key=lambda row: row.cluster):
        ranked = sorted(group, key=lambda row: (row.measured_s is None, row.measured_s or row.simulated_s))
        table = text_table(HEADINGS, [_cells(row) for row in ranked], width=None, expendable=())
        best = ranked[0]
        lines += ["", f"{best.graph} on {cluster}, measured on this machine ({best.n_steps} steps each)"]
        lines += table.lines
        lines += [f"{row.placer}: {row.failure}" for row in ranked if row.failure]
        single = next((row for row in ranked if row.placer == "single"), None)
        if single and single.measured_s and best.measured_s:
            ratio = best.measured_s / single.measured_s
            lines.append(f"The shortest measured step is {best.placer}'s: {ratio:.3f} of one device's.")
    return lines


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    name = name_of(row.placer, row.order)
    if row.measured_s is None or row.low_s is None or row.high_s is None:
        return name, _ms(row.simulated_s), "cannot run", ""
    return name, _ms(row.simulated_s), _ms(row.measured_s), f"{_ms(row.low_s)} to {_ms(row.high_s)}"


def _fidelity_lines(rows: Sequence[FidelityRow]) -> list[str]:
    lines: list[str] = []
    for cluster, group in groupby(rows, key=lambda row: row.cluster):
        of_cluster = list(group)
        fidelity = fidelity_of(of_cluster)
        lines += ["", f"{of_cluster[0].graph} on {cluster}: simulated against measured"]
        failed = sum(row.measured_s is None for row in of_cluster)
        if failed:
            lines.append(f"{failed} of {len(of_cluster)} placements cannot be run; see fidelity.csv.")
        if fidelity is None:
            lines.append("Too few placements could be run to compare.")
        else:
            lines += [
                f"{fidelity.n_placements} placements: error {fidelity.median_error:.1%} median, "
                f"{fidelity.p90_error:.1%} 90th percentile;",
                f"after one factor for all of them {fidelity.scaled_error:.1%} median",
                f"rank correlation {fidelity.spearman:.3f} (Spearman), {fidelity.kendall:.3f} (Kendall);",
                f"two rounds of measurements have {fidelity.retest:.3f} (Kendall)",
                f"picking the simulator's best costs {fidelity.regret:.1%}",
            ]
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"
