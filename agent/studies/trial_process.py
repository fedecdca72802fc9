"""A trial of a study, trained in a process of its own."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from agent.contexts.local import LocalContext
from agent.policy.serialization import load_policy
from agent.studies.record import AttemptResult
from agent.training.checkpoints import CheckpointFolder
from agent.training.config import TrainConfig
from agent.training.inputs import read_inputs
from agent.training.metrics import ITERATION, SCORE
from agent.training.performance.malloc import release_freed_memory
from agent.training.problems import validation_problems
from agent.training.split import Split
from agent.training.trainer import DivergedError, train
from agent.training.validation import ratios_over_orders
from graphs.identity import content_hash
from graphs.system.command_line import FULL
from graphs.system.errors import InputError
from graphs.system.json_files import read_json, write_json_atomic

JUDGEMENT = "held_out.json"
"""File of a trial with the step time of its policy on each graph that chose nothing."""


@dataclass(frozen=True)
class TrialRequest:
    """The request to a process to train a trial: its settings, as JSON, and its folder."""

    config: Mapping[str, Any]
    folder: str


@dataclass(frozen=True, kw_only=True)
class TrialOutcome(AttemptResult):
    """The outcome of an attempt in its process.

    Attributes:
        finished: whether the training came to its end.
        no_space: number of the error (`errno`) where the disk is full, which is no failure of the trial.
    """

    finished: bool = False
    no_space: int = 0


class TrialContext(LocalContext):
    """Trains a trial until it ends or the study stops it.

    Args:
        stop: file that the study's process makes to stop the trial.
    """

    def __init__(self, config: TrainConfig, folder: Path, stop: Path) -> None:
        quiet = Console(quiet=True, force_terminal=False)
        super().__init__(config, folder, resume=folder.exists(), console=quiet)
        self._stop_file = stop

    def should_stop(self) -> bool:
        """Says whether the study has stopped it."""
        return self._stop_file.exists()

    def _catch_signals(self, cleanup: ExitStack) -> None:
        """Leaves signals to the study; a trial may run in any thread."""


@dataclass
class TrialTrainer:
    """Handles requests in a process.

    Args:
        stop: file that ends the training at hand after its update, when it is made.
    """

    stop: Path

    def __call__(self, request: TrialRequest) -> TrialOutcome:
        """Trains or resumes a trial; returns failures instead of raising them."""
        try:
            return self._train(request)
        except (InputError, OSError) as error:
            if isinstance(error, OSError) and error.errno in FULL:
                return TrialOutcome(no_space=error.errno)
            return TrialOutcome(error=" ".join(str(error).split()))
        except Exception as error:
            return TrialOutcome(error=f"{type(error).__name__}: {' '.join(str(error).split())}")
        finally:
            release_freed_memory()

    def _train(self, request: TrialRequest) -> TrialOutcome:
        folder = Path(request.folder)
        config = TrainConfig.from_json(request.config, "trial")
        checkpoints = CheckpointFolder(folder / "checkpoints")
        resumed_from = int(checkpoints.files[-1].stem) if checkpoints.files else 0
        context = TrialContext(config, folder, self.stop)
        inputs = read_inputs(config, context.graphs, context.runnable)
        error = ""
        try:
            with context:
                result = train(config, context, inputs)
                context.finish(result)
        except DivergedError as diverged:
            result, error = diverged.result, str(diverged)
        has_policy, scores = math.isfinite(result.best_score), scores_of(folder)
        return TrialOutcome(
            finished=result.finished,
            resumed_from_step=resumed_from,
            graphs_hash=hash_of(context.graphs),
            steps=result.iterations,
            decisions=result.timesteps,
            wall_s=result.wall_s,
            parameters=count_parameters(folder) if has_policy else None,
            final_score=scores[-1][1] if scores else None,
            best_score=result.best_score if has_policy else None,
            held_out=judge(config, context.graphs, folder) if result.finished and has_policy else None,
            checkpoint=str(checkpoints.files[-1].name) if checkpoints.files else "",
            error=error,
        )


def judge(config: TrainConfig, graphs: Split, folder: Path) -> float | None:
    """Places the graphs that chose nothing by the policy of a run, and keeps the step times in its folder.

    Every trial of a study is judged so: by the simulated step, whatever the trial was trained with.

    Returns:
        Geometric mean of the step time over that of the fastest single device; None without such graphs.
    """
    problems = validation_problems(graphs.held_out, config)
    if not problems:
        return None
    ratios = ratios_over_orders(load_policy(folder), problems, config.order)
    named = [f"{problem.graph.name} on {problem.cluster.name}" for problem in problems]
    write_json_atomic(folder / JUDGEMENT, dict(zip(named, ratios, strict=True)))
    return float(np.exp(np.mean(np.log(ratios))))


def count_parameters(folder: Path) -> int:
    """Numbers that the policy of a run learned."""
    return sum(each.numel() for each in load_policy(folder).network.parameters())


def read_judgement(folder: Path) -> dict[str, float]:
    """Reads what `judge` kept: step time over that of one device, by graph and cluster.

    Raises:
        FileFormatError: the file cannot be read.
        InputError: it holds something else.
    """
    found = read_json(folder / JUDGEMENT)
    if not isinstance(found, dict) or not all(type(value) is float and value > 0 for value in found.values()):
        raise InputError(f"{folder / JUDGEMENT}: holds no step times; remove it and run the study again")
    return found


def hash_of(graphs: Split) -> str:
    """Hash of the graphs of a trial, by use."""
    hashes = {use: [content_hash(graph) for graph in some] for use, some in vars(graphs).items()}
    return hashlib.sha256(json.dumps(hashes, sort_keys=True).encode()).hexdigest()[:16]


def scores_of(folder: Path) -> list[tuple[int, float]]:
    """Update and score of each evaluation of a run that is in its `metrics.jsonl`, the first one first."""
    path = folder / "metrics.jsonl"
    rows = path.read_bytes().rpartition(b"\n")[0].split(b"\n") if path.exists() else []
    scores = []
    for row in rows:
        with suppress(ValueError):
            values = json.loads(row)
            if values.get(SCORE) is not None:
                scores.append((int(values[ITERATION]), float(values[SCORE])))
    return scores
