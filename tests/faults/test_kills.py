"""Processes are killed or interrupted at drawn moments, and end as if nothing had happened."""

from __future__ import annotations

import ctypes
import random
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from agent.placers.base import PLACERS, Budget
from envs.problem import Problem
from tests.agent.placement_cases import make_cluster, training_graph
from tests.faults.processes import EVALUATE, Command, rows_of, train, trials_of
from tests.fork_server import context
from tests.training_cases import write_toys

KILL, TERM, INT = signal.SIGKILL, signal.SIGTERM, signal.SIGINT
KILLS_PER_RUN = 8
DRAWN = (KILL, KILL, KILL, TERM, INT)


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with graphs and a training that nothing disturbed, `runs/whole`."""
    folder = tmp_path_factory.mktemp("kills")
    write_toys(folder)
    whole = train(folder, "whole")
    assert whole.wait() == 0, whole.output
    return folder


def drafts(folder: Path) -> list[Path]:
    return list(folder.rglob(".*.tmp"))


def disturb(command: Command, number: signal.Signals, delay_s: float) -> bool:
    """Sends a signal after a while; returns whether the command ended by itself, successfully."""
    time.sleep(delay_s)
    command.send(number)
    code = command.wait()
    assert code in ((0, -KILL) if number == KILL else (0, 1)), command.output
    assert "Traceback" not in command.output
    return code == 0


def test_a_training_survives_any_signal_at_any_moment(here: Path) -> None:
    draw, name = random.Random(0), "disturbed"
    for _ in range(KILLS_PER_RUN):
        command = train(here, name)
        if disturb(command, draw.choice(DRAWN), draw.uniform(0.0, 1.3)):
            break
    last = train(here, name)
    assert last.wait() == 0, last.output
    run, whole = here / "runs" / name, here / "runs" / "whole"
    assert (run / "policy.safetensors").read_bytes() == (whole / "policy.safetensors").read_bytes()
    assert rows_of(run) == rows_of(whole)
    assert not drafts(run)


SEEN = {"references": "annealing 8 graphs", "comparison": "to_device/score", "update": "policy_gradient_loss"}


@pytest.mark.parametrize("number", [KILL, TERM, INT])
@pytest.mark.parametrize("part", SEEN)
def test_a_training_survives_a_signal_in_each_part(here: Path, part: str, number: signal.Signals) -> None:
    name = f"{part}-{number.name}"
    metrics = here / "runs" / name / "metrics.jsonl"
    command = train(here, name)
    seen = SEEN[part]
    command.wait_until(lambda: seen in command.output or (metrics.exists() and seen in metrics.read_text()))
    disturb(command, number, 0.0)
    last = train(here, name)
    assert last.wait() == 0, last.output
    assert rows_of(here / "runs" / name) == rows_of(here / "runs" / "whole")


def evaluate(folder: Path, out: str, jobs: int = 1) -> Command:
    words = "--graphs graphs.jsonl --policy runs/whole --include-seen --budget 400 --seeds 2"
    words += f" --jobs {jobs} --out {out} --placers single heft annealing policy"
    return Command(EVALUATE, words.split(), folder)


def test_an_evaluation_survives_any_signal_at_any_moment(here: Path) -> None:
    whole = evaluate(here, "whole")
    assert whole.wait() == 0, whole.output
    draw = random.Random(0)
    disturbed = 0
    for jobs, kills in ((1, KILLS_PER_RUN), (2, KILLS_PER_RUN // 2)):
        out = f"disturbed-{jobs}"
        for _ in range(kills):
            command = evaluate(here, out, jobs)
            disturbed += 1
            if disturb(command, draw.choice(DRAWN), draw.uniform(0.0, 1.0)):
                break
        last = evaluate(here, out, jobs)
        assert last.wait() == 0, last.output
        assert trials_of(here / out) == trials_of(here / "whole")
        journal = (here / out / "journal.jsonl").read_text().splitlines()
        assert len(journal) == len(set(journal)) == len(trials_of(here / "whole"))
        assert not drafts(here / out)
    assert disturbed >= KILLS_PER_RUN


def interrupt_in_a_call_of_a_kernel() -> None:
    """Ends with code 3 if the interrupt was raised; numba calls `ctypes.cast` while it reads a generator."""
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a test run in the background ignores it
    cast = ctypes.cast

    def interrupted(*arguments: object) -> object:
        ctypes.cast = cast
        signal.raise_signal(signal.SIGINT)
        return cast(*arguments)  # type: ignore[arg-type]

    problem, rng = Problem(training_graph(2, 1), make_cluster(2)), np.random.default_rng(0)
    PLACERS["annealing"].place(problem, Budget(100), rng)  # loads the kernels
    ctypes.cast = interrupted  # type: ignore[assignment]
    try:
        PLACERS["annealing"].place(problem, Budget(100), rng)
    except KeyboardInterrupt:
        sys.exit(3)


def test_an_interrupt_while_a_kernel_is_called_crashes_nothing() -> None:
    process = context.Process(target=interrupt_in_a_call_of_a_kernel)
    process.start()
    process.join(120)
    assert process.exitcode == 3
