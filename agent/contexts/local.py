"""A training in one process on this machine, which writes `runs/NAME/`."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rich.console import Console

from agent.contexts.engine import how_to_resume
from agent.placing.trial_runner import compile_jobs, warm_up_graph
from agent.training import run_folder as runs
from agent.training.checkpoints import CheckpointError, CheckpointFolder
from agent.training.config import MEASURED, ConfigError, TrainConfig
from agent.training.inputs import read_inputs
from agent.training.problems import Split, split_graphs
from agent.training.reporters import MetricsFile, ProgressBar, Reporter, TensorBoard
from agent.training.trainer import DivergedError, Result, train
from agent.training.workers import SOLO, WorkerGroup
from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_to_json
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER, RANDOM, get_cluster
from envs.placement.render import Picture
from envs.runtime.profiles import with_profile
from envs.runtime.runnable_model import RunnableModel, load_runnable
from graphs.capture.user_model import capture_model
from graphs.dataset import load_graphs
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.system.command_line import name_of
from graphs.system.compiling import compile_ahead
from graphs.system.interrupts import handled_by
from graphs.system.json_files import write_json_atomic

CURVES = "curves: tensorboard --logdir {}\non one screen: http://localhost:6006/#custom_scalars"
MOMENT: Mapping[str, Any] = dict.fromkeys(
    ("demonstrations", "imitation_epochs", "dagger_rounds", "epochs", "repeats", "threads"), 1
) | {"timesteps": 128, "search": 100, "n_envs": 8, "n_steps": 16}
"""Settings of the shortest training that has all phases."""


class LocalContext:
    """Trains in this process until the training ends or SIGINT or SIGTERM stops it; a context manager.

    Args:
        folder: of the run; made on entry unless `resume`.
        resume: whether to go on with what is there.
        console: by default stderr.

    Attributes:
        has_reported: whether an update was made, since a resumed run was opened too.

    Raises:
        ValueError: graphs that cannot be read or leave nothing to train on, before anything is written; on
            entry, a run that is in use or whose files are damaged.
    """

    def __init__(
        self, config: TrainConfig, folder: Path, *, resume: bool, console: Console | None = None
    ) -> None:
        self.config, self.folder, self.resume = config, folder, resume
        self.seed, self.device = config.seed, config.device
        self.runnable = _runnable(config)
        self.graphs = load_split(config, self.runnable)
        self.checkpoints = CheckpointFolder(folder / "checkpoints")
        self.group: WorkerGroup = SOLO
        self._console = console or Console(stderr=True)
        self._bar = ProgressBar(self._console)
        self._board = TensorBoard(folder, _unusual(config))
        self._reporters: tuple[Reporter, ...] = (self._bar,)
        self._final: dict[str, float] = {}
        self._stop = False
        self.has_reported = False
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with runs.opened(self.folder, self.config, resume=self.resume) as cleanup:
            metrics = MetricsFile(self.folder / "metrics.jsonl")
            if self.resume and not (files := self.checkpoints.files):
                self._start_anew(metrics.last_iteration)
            elif self.resume and int(files[-1].stem) > metrics.last_iteration:
                row = f"{self.folder}/metrics.jsonl: has no row of update {metrics.last_iteration + 1}"
                raise CheckpointError(
                    f"{row}, though {files[-1].name} is there; put the run's own files back"
                )
            self._catch_signals(cleanup)
            self._reporters = (metrics, self._board, self._bar)
            for reporter in self._reporters:
                cleanup.callback(self._close, reporter)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._cleanup:
            if isinstance(error, DivergedError):
                self.finish(error.result)

    def report(self, timesteps: int, metrics: Mapping[str, float]) -> None:
        """Passes the numbers of one update on to file, TensorBoard and screen."""
        if not self.has_reported:
            (self.folder / runs.RESULT).unlink(missing_ok=True)
            self.has_reported = True
        for reporter in self._reporters:
            reporter.report(timesteps, metrics)

    def show(self, timesteps: int, tag: str, picture: Picture) -> None:
        """Passes a picture on to TensorBoard."""
        self._board.show(timesteps, tag, picture)

    def announce(self, activity: str, share: float) -> None:
        """Shows it on the screen."""
        self._bar.announce(activity, share)

    def should_stop(self) -> bool:
        """Says whether a signal came."""
        return self._stop

    def finish(self, result: Result) -> None:
        """Writes `result.json` and keeps the closing numbers, unless training was stopped."""
        if result.finished or result.failure:
            values = asdict(result)
            known = {key: None if value == math.inf else value for key, value in values.items()}
            write_json_atomic(self.folder / runs.RESULT, known)
        if result.finished:
            numbers = {key: value for key, value in values.items() if type(value) in (int, float)}
            self._final = {key: float(value) for key, value in numbers.items()}

    def _close(self, reporter: Reporter) -> None:
        reporter.close(self._final)

    def _start_anew(self, last_iteration: int) -> None:
        """Announces that a run without a checkpoint starts from the beginning, if none was due yet.

        Raises:
            CheckpointError: there was one, as later updates were made.
        """
        if last_iteration > self.config.checkpoint_every or runs.is_finished(self.folder):
            raise CheckpointError(
                f"{self.checkpoints.folder}: holds no checkpoint, but {last_iteration} updates were made; "
                "put it back, or start a new training under another name"
            )
        self.announce(f"{self.folder} holds no checkpoint yet; the training starts from the beginning", 0.0)

    def _catch_signals(self, cleanup: ExitStack) -> None:
        cleanup.enter_context(handled_by(self._on_signal))

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        """Stops after the update under way; at once when asked again."""
        if self._stop:
            raise KeyboardInterrupt
        self._stop = True
        self._console.print("stopping after this update; press Ctrl-C again to stop at once")


def train_in(context: LocalContext) -> int:
    """Trains in a context, and prints what came of it.

    Returns:
        The exit code: 0 done, 1 stopped or diverged.

    Raises:
        InputError: a setting that no training can have.
        OSError: a file cannot be written.
    """
    config, result = context.config, None
    inputs = read_inputs(config, context.graphs, context.runnable)
    if inputs.left_out:
        print(f"left out because no placement is feasible: {'; '.join(inputs.left_out)}", file=sys.stderr)
    try:
        with context:
            result = train(config, context, inputs)
            context.finish(result)
    except DivergedError as error:
        print(f"{name_of('train_agent.py')}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if context.folder.exists():
            error.add_note(how_to_resume(config))  # said where the disk is full
        raise
    except KeyboardInterrupt:
        result = None
    if result is None or not result.finished:
        print(f"stopped; {how_to_resume(config)}", file=sys.stderr)
        return 1
    print(closing_lines(result, context.folder))
    if not context.has_reported:
        is_through = result.timesteps >= config.timesteps
        limit = f"--timesteps above {result.timesteps:,}" if is_through else "--minutes"
        print(f"nothing was left to train; to go on, resume with {limit}")
    return 0


def compile_for_training(clusters: Iterable[str], placers: Iterable[str] = ("annealing",)) -> None:
    """Compiles on all cores what a training on clusters calls, and what placers call."""
    named = [get_cluster(DEFAULT_CLUSTER if name == RANDOM else name) for name in clusters]
    compile_ahead(compile_jobs(placers, named, training=train_a_moment))


def train_a_moment(cluster: Cluster) -> None:
    """Trains on small graphs, in a folder that is removed."""
    with tempfile.TemporaryDirectory() as name:
        graphs, file = Path(name, "graphs.jsonl"), Path(name, "cluster.json")
        write_graphs(graphs, [replace(warm_up_graph(), name=f"toy{i}", family="toys") for i in range(8)])
        write_json_atomic(file, cluster_to_json(cluster))
        config = TrainConfig(name="toy", graphs=(str(graphs),), cluster=(str(file),), **MOMENT)
        train_in(LocalContext(config, Path(name, "run"), resume=False))


def closing_lines(result: Result, folder: Path) -> str:
    """Says how good the policy is, what the time did not suffice for, and where the curves are."""
    lines = [
        f"{folder}: {result.best_score:.3f} of one device's step time on graphs not held out",
        f"reached after {result.best_timesteps:,} decisions; trained for {result.wall_s / 60:.1f} minutes",
    ]
    if not result.best_timesteps:
        lines.append("no policy of this training places these graphs better than its start, which is kept")
    gains = [
        f"{use.replace('_', ' ')} {old:.3f} -> {new:.3f}" for use, (old, new) in result.reinforcement.items()
    ]
    if gains:
        lines += ["by reinforcement:", *(f"  {gain}" for gain in gains)]
    if result.cut_short:
        lines += ["cut short by --minutes:", *(f"  {phase}" for phase in result.cut_short)]
    return "\n".join([*lines, CURVES.format(folder)])


def load_split(config: TrainConfig, runnable: RunnableModel | None = None) -> Split:
    """Reads the graphs that a configuration names, and splits them by use.

    Args:
        runnable: the model that the configuration names, if it is captured already.

    Raises:
        ConfigError: none are named, or the split leaves none to train on.
        ValueError: a family or a file cannot be read, or a model cannot be captured.
    """
    if not (config.families or config.graphs or config.model):
        raise ConfigError("nothing to train on; give --families, --graphs or --model")
    if config.model is None and (config.inference or config.optimizer != "adam"):
        raise ConfigError("--optimizer and --inference decide how a --model is captured; give --model")
    graphs = load_graphs(config.families)
    for path in config.graphs:
        graphs.extend(read_graphs(path, limit_bytes=config.max_decompressed_bytes))
    if runnable is not None:
        graphs.append(runnable.captured.graph)
    elif config.model is not None:
        training = not config.inference
        graphs.append(capture_model(config.model, optimizer=config.optimizer, training=training).graph)
    return split_graphs(graphs, holdout=config.holdout, validation=config.validation)


def _unusual(config: TrainConfig) -> dict[str, Any]:
    default, own = TrainConfig(name=config.name).to_json(), config.to_json()
    return {key: value for key, value in own.items() if value != default[key]}


def _runnable(config: TrainConfig) -> RunnableModel | None:
    """Makes the model of a configuration, if it is to be measured; its graph has its ops' times here."""
    if config.model is None or config.reward != MEASURED:
        return None
    clusters = [get_cluster(cluster) for cluster in config.cluster]
    gpu, training = gpus_of(clusters), not config.inference
    model = load_runnable(config.model, optimizer=config.optimizer, training=training, gpu=gpu)
    graph = with_profile(model.captured.graph, model, clusters, timeout_s=config.measure_timeout)
    return replace(model, captured=replace(model.captured, graph=graph))
