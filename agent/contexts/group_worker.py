"""What each process of a distributed training does: it joins the others, trains, and ends as they do."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack, redirect_stderr, redirect_stdout
from pathlib import Path

from rich.console import Console

from agent.contexts.distributed import FirstWorker, worker_context
from agent.contexts.process_group import ProcessGroup, WorkerLostError
from agent.training.config import TrainConfig
from agent.training.inputs import Inputs, read_inputs
from agent.training.workers import FIRST
from graphs.errors import InputError

Resolve = Callable[[], tuple[TrainConfig, Path, bool]]
"""Gives the configuration, the folder of the run and whether to go on with it."""
Train = Callable[[TrainConfig, FirstWorker, Inputs], int]
"""Trains, prints what came of it, and returns the exit code."""


def run_worker(joined: AbstractContextManager[ProcessGroup], resolve: Resolve, train: Train) -> int:
    """Trains as one of several workers; the first one prints, the others only what is wrong with them.

    Args:
        joined: joins the others.
        resolve: called by the first worker alone.

    Returns:
        The exit code, the same on all workers: 0 done, 1 stopped or failed, 2 wrong input.

    Raises:
        InputError: wrong input, in the first worker.
    """
    is_first = True
    try:
        with ExitStack() as stack:
            group = stack.enter_context(joined)
            is_first = group.rank == FIRST
            if not is_first:
                nowhere = stack.enter_context(open(os.devnull, "w", encoding="utf-8"))
                stack.enter_context(redirect_stdout(nowhere))
                stack.enter_context(redirect_stderr(nowhere))
            context = worker_context(group, resolve, Console(stderr=True))
            inputs = read_inputs(context.config, context.graphs, context.runnable)
            if inputs.left_out:
                print(f"left out, as no placement is feasible: {', '.join(inputs.left_out)}", file=sys.stderr)
            return train(context.config, context, inputs)
    except InputError:
        if is_first:
            raise
        return 2
    except WorkerLostError as error:
        if is_first:
            print(
                f"{error}; the same command with --resume goes on from the last checkpoint", file=sys.stderr
            )
        return 1
