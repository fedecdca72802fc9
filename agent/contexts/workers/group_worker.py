"""One process of a distributed training: it joins the others, trains, and ends as they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from rich.console import Console

from agent.contexts.workers.distributed import FirstWorker, worker_context
from agent.contexts.workers.process_group import ProcessGroup, WorkerLostError
from agent.training.config import TrainConfig
from agent.training.inputs import Inputs, read_inputs
from agent.training.workers import FIRST
from graphs.system.errors import InputError

Joined = AbstractContextManager[ProcessGroup]
Told = Callable[[], bool]
Resolve = Callable[[], tuple[TrainConfig, Path, bool]]
"""Gives the configuration, the folder of the run and whether to go on with it."""
Train = Callable[[TrainConfig, FirstWorker, Inputs], int]
"""Trains, prints what came of it, and returns the exit code."""


def run_worker(joined: Joined, resolve: Resolve, train: Train) -> int:
    """Trains as one of several workers that run the same command.

    Returns:
        The exit code, the same on all workers: 0 done, 1 stopped or failed, 2 wrong input.

    Raises:
        InputError: wrong input, in the first worker.
    """
    is_first = os.environ.get("RANK") == "0"
    try:
        return train_with_others(joined, resolve, train)
    except InputError:
        if is_first:
            raise
        return 2
    except WorkerLostError as error:
        if is_first:
            print(f"{error}; use --resume to continue from the last checkpoint", file=sys.stderr)
        return 1


def train_with_others(joined: Joined, resolve: Resolve, train: Train, told: Told | None = None) -> int:
    """Trains as one of several workers; the first one prints.

    Args:
        resolve: called by the first worker alone.
        told: says whether the first worker is asked to stop.

    Returns:
        What `train` returned.

    Raises:
        InputError: wrong input, in any worker.
        WorkerLostError: another worker failed or is gone.
    """
    with ExitStack() as stack:
        group = stack.enter_context(joined)
        if group.rank != FIRST:
            nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
            stack.enter_context(redirect_stdout(nowhere))
            stack.enter_context(redirect_stderr(nowhere))
        context = worker_context(group, resolve, Console(stderr=True), told)
        inputs = read_inputs(context.config, context.graphs, context.runnable)
        if inputs.left_out:
            print(f"left out because no placement is feasible: {', '.join(inputs.left_out)}", file=sys.stderr)
        return train(context.config, context, inputs)
