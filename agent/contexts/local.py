"""A training in one process on this machine, which writes `runs/NAME/`."""

from __future__ import annotations

import math
import sys
import tempfile
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, replace
from pathlib import Path
from types import FrameType
from typing import Any, Self

from rich.console import Console
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import KVWriter

from agent.contexts import run_folder as runs
from agent.contexts.engine import how_to_resume
from agent.contexts.outputs import EventWriter, MetricsFile, ProgressBar
from agent.learn.callbacks import RolloutCallback
from agent.learn.checkpoints import CheckpointError, CheckpointFolder
from agent.learn.config import MEASURED, ConfigError, TrainConfig
from agent.learn.inputs import read_inputs
from agent.learn.train import DivergedError, Result, train
from agent.learn.workers import SOLO, WorkerGroup
from agent.placing.trial_runner import compile_jobs, warm_up_graph
from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_to_json
from envs.cluster.kinds import gpus_of
from envs.cluster.presets import DEFAULT_CLUSTER, RANDOM, get_cluster
from envs.runtime.profiles import with_profile
from envs.runtime.runnable_model import RunnableModel, load_runnable
from graphs.capture.user_model import capture_model
from graphs.dataset import Split, load_graphs, split_graphs
from graphs.io.graph_files import read_graphs, write_graphs
from graphs.system.command_line import name_of
from graphs.system.compiling import compile_ahead
from graphs.system.interrupts import handled_by
from graphs.system.json_files import write_json_atomic

CURVES = "curves: tensorboard --logdir {}\non one screen: http://localhost:6006/#custom_scalars"
MOMENT: dict[str, Any] = dict.fromkeys(("epochs", "repeats", "threads"), 1)
MOMENT |= {"timesteps": 128, "n_envs": 8, "n_steps": 16}
"""Settings of the shortest training."""


class _ResultRemover(RolloutCallback):
    """Removes the result of a run that goes on."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.path = path

    def _on_rollout_end(self) -> None:
        self.path.unlink(missing_ok=True)


class LocalContext:
    """Trains in this process until the training ends or SIGINT or SIGTERM stops it; a context manager.

    Args:
        folder: of the run; made on entry unless `resume`.
        resume: whether to go on with what is there.
        console: by default stderr.

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
        self.callbacks: Sequence[BaseCallback] = (self._bar, _ResultRemover(folder / runs.RESULT))
        self.outputs: Sequence[KVWriter] = ()
        self._stop = False
        self._cleanup = ExitStack()

    def __enter__(self) -> Self:
        with runs.opened(self.folder, self.config, resume=self.resume) as cleanup:
            metrics = MetricsFile(self.folder / "metrics.jsonl")
            if self.resume and not (files := self.checkpoints.files):
                self._start_anew(metrics.last_update)
            elif self.resume and int(files[-1].stem) > metrics.last_update:
                row = f"{self.folder}/metrics.jsonl: has no row of update {metrics.last_update + 1}"
                raise CheckpointError(
                    f"{row}, though {files[-1].name} is there; put the run's own files back"
                )
            self._catch_signals(cleanup)
            self.outputs = (metrics, self.make_event_writer())
            for output in (*self.outputs, self._bar):
                cleanup.callback(output.close)
            self._cleanup = cleanup.pop_all()
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        with self._cleanup:
            if isinstance(error, DivergedError):
                self.finish(error.result)

    def make_event_writer(self) -> EventWriter:
        """Makes the output for TensorBoard."""
        return EventWriter(self.folder)

    def announce(self, activity: str, share: float) -> None:
        """Shows it on the screen."""
        self._bar.announce(activity, share)

    def should_stop(self) -> bool:
        """Says whether a signal came."""
        return self._stop

    def finish(self, result: Result) -> None:
        """Writes `result.json`, unless training was stopped."""
        if result.finished or result.failure:
            values = {key: None if value == math.inf else value for key, value in asdict(result).items()}
            write_json_atomic(self.folder / runs.RESULT, values)

    def _start_anew(self, last_update: int) -> None:
        """Announces that a run without a checkpoint starts from the beginning, if none was due yet.

        Raises:
            CheckpointError: there was one, as later updates were made.
        """
        if last_update > self.config.checkpoint_every or runs.is_finished(self.folder):
            raise CheckpointError(
                f"{self.checkpoints.folder}: holds no checkpoint, but {last_update} updates were made; "
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
    config, result, files = context.config, None, context.checkpoints.files
    updates_before = int(files[-1].stem) if files else 0
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
    if result.updates == updates_before:
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
    gains = [f"  {use.replace('_', ' ')} {old:.3f} -> {new:.3f}" for use, (old, new) in result.gains.items()]
    if gains:
        lines += ["by training:", *gains]
    if result.cut_short:
        lines.append(f"cut short by --minutes: {result.cut_short}")
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


def _runnable(config: TrainConfig) -> RunnableModel | None:
    """Makes the model of a configuration, if it is to be measured; its graph has its ops' times here."""
    if config.model is None or config.reward != MEASURED:
        return None
    clusters = [get_cluster(cluster) for cluster in config.cluster]
    gpu, training = gpus_of(clusters), not config.inference
    model = load_runnable(config.model, optimizer=config.optimizer, training=training, gpu=gpu)
    graph = with_profile(model.captured.graph, model, clusters, timeout_s=config.measure_timeout)
    return replace(model, captured=replace(model.captured, graph=graph))
