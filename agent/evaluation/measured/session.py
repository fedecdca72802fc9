"""Measurements of an evaluation: the seconds of ops, the best placements, and the fidelity of the
simulator.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, dataclass, fields, replace
from functools import partial
from pathlib import Path

from agent.calibration.quick import get_or_measure_cluster
from agent.evaluation.config import EvaluationConfig, EvaluationError
from agent.evaluation.measured.adapted import Placed, adapted
from agent.evaluation.measured.fidelity import FidelityRow, measure_fidelity
from agent.evaluation.results import Trial
from agent.evaluation.run import file_name, placement_path
from agent.evaluation.spec import EvaluationSpec
from envs.cluster.cluster import Cluster
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER
from envs.placements.files import read_placement, write_placement
from envs.placements.placement import Placement
from envs.problem import Problem
from envs.runtime.backends.processes import DeviceProcesses, torch_devices
from envs.runtime.profiles import with_profile
from envs.runtime.runnable_model import RunnableModel, load_runnable
from envs.runtime.step_meter import StepMeter, StepTimeStore
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.csv_files import write_csv

ADAPTED = "adapted"
"""Folder of the placement with the shortest measured step on each cluster."""
Report = Callable[[str, int, int], None]
"""Called with what is measured, how much of it is done, and how much there is in all."""


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
            optimizer=config.optimizer,
            training=not config.inference,
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
        others = (graph if each.name == self.name else each for each in spec.graphs)
        return replace(spec, graphs=tuple(others), whole={})  # whole batches are not timed

    def best(
        self,
        spec: EvaluationSpec,
        trials: Sequence[Trial],
        count: int,
        report: Report,
        *,
        adapts: bool = False,
    ) -> list[MeasuredRow]:
        """Measures one device, and the best placements that the trials found; writes `measured.csv`.

        Args:
            count: greatest number of different placements per cluster, the shortest simulated steps first.
            adapts: whether each measurement corrects the costs that the next placement is found with. The
                first placement is the same. That of the shortest measured step is written to `adapted/`.
        """
        rows: list[MeasuredRow] = []
        graph = self._graph(spec)
        for cluster in spec.clusters:
            with self._meter(cluster) as meter:
                measurements = self._measurements(cluster, meter)
                found, what = self._found(spec, graph, cluster, trials), f"steps on {cluster.name}"
                single = [pair for pair in found if pair[0].placer == "single"]
                if adapts and found:
                    found = adapted(
                        Problem(graph, cluster), found, measurements, count, partial(report, what)
                    )
                chosen = found[:count]
                chosen += [pair for pair in single if pair[0] not in [trial for trial, _ in chosen]]
                measured = list(_measured_rows(chosen, measurements, partial(report, what)))
                if adapts:
                    self._write_shortest(graph, cluster, measured, chosen)
                rows += measured
        _write(self._folder / "measured.csv", MeasuredRow, rows)
        return rows

    def fidelity(self, spec: EvaluationSpec, count: int, report: Report) -> list[FidelityRow]:
        """Simulates and measures varied placements on every cluster; writes `fidelity.csv`."""
        rows: list[FidelityRow] = []
        for cluster in spec.clusters:
            problem = Problem(self._graph(spec), cluster)
            what = f"placements on {cluster.name}"
            with self._meter(cluster) as meter:
                rows += measure_fidelity(
                    problem,
                    self._measurements(cluster, meter),
                    count,
                    spec.granularity,
                    lambda done, total, what=what: report(what, done, total),  # type: ignore[misc]
                )
        _write(self._folder / "fidelity.csv", FidelityRow, rows)
        return rows

    def _found(
        self, spec: EvaluationSpec, graph: OpGraph, cluster: Cluster, trials: Sequence[Trial]
    ) -> list[Placed]:
        """Lists the different placements of a cluster, the best first."""
        placed = [each for each in trials if each.is_placement]
        of_cluster = [each for each in placed if (each.graph, each.cluster) == (self.name, cluster.name)]
        best_seed = {(each.placer, each.order): each for each in sorted(of_cluster, key=_worst_first)}
        found: dict[bytes, Placed] = {}
        for trial in sorted(best_seed.values(), key=lambda each: each.rank):
            placement = read_placement(placement_path(self._folder, trial), graph, cluster)
            found.setdefault(placement.device_of.tobytes(), (trial, placement.device_of))
        return list(found.values())

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

    def _measurements(self, cluster: Cluster, meter: StepMeter) -> StepTimeStore:
        return StepTimeStore(self._folder / "measurements.jsonl", meter, self._devices[cluster.name])

    @contextmanager
    def _meter(self, cluster: Cluster) -> Iterator[StepMeter]:
        model = self._model
        with DeviceProcesses(self._devices[cluster.name], self._timeout_s) as processes:
            yield StepMeter(model.captured, model.module, model.inputs, processes)


def _worst_first(trial: Trial) -> tuple[bool, float, int]:
    """Sorts seeds so that the one whose placement was kept comes last."""
    return (trial.feasible, -trial.step_time_s, -trial.seed)


def _measured_rows(
    placed: Sequence[Placed], measurements: StepTimeStore, report: Callable[[int, int], None]
) -> Iterator[MeasuredRow]:
    for done, (trial, device_of) in enumerate(placed):
        report(done, len(placed))
        yield _measured_row(trial, measurements, device_of)
    report(len(placed), len(placed))


def _measured_row(trial: Trial, measurements: StepTimeStore, device_of: IntArray) -> MeasuredRow:
    measured = measurements.measure(device_of)
    return MeasuredRow(
        graph=trial.graph,
        cluster=trial.cluster,
        granularity=trial.granularity,
        placer=trial.placer,
        order=trial.order,
        seed=trial.seed,
        simulated_s=trial.step_time_s,
        measured_s=measured.median_s if measured.feasible else None,
        low_s=measured.low_s if measured.feasible else None,
        high_s=measured.high_s if measured.feasible else None,
        n_steps=measured.n_steps,
        failure=measured.failure,
    )


def _write(
    path: Path, kind: type[MeasuredRow | FidelityRow], rows: Sequence[MeasuredRow | FidelityRow]
) -> None:
    write_csv(path, [each.name for each in fields(kind)], [astuple(row) for row in rows])
