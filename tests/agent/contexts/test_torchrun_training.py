"""The command line with several workers, started as torchrun starts them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from agent.learn.metrics import UPDATES
from graphs.system.json_files import read_json
from tests.agent.contexts.worker_cases import free_port
from tests.faults.processes import PATIENCE_S, TRAIN, TRAINING, Command, rows_of
from tests.training_cases import place, write_toys

__all__ = ["place"]
ROOT = Path(__file__).parents[3]
FLAGS = [*TRAINING.split(), "--context", "distributed"]
ENDLESS = [*FLAGS, "--timesteps", "1000000"]


class Workers:
    """Two processes that run the training command in a folder each, with the environment of torchrun."""

    def __init__(self, folder: Path, *words: str, other: Path | None = None) -> None:
        folders = (folder, other or folder)
        ranks = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
        self.commands = [Command(TRAIN, words, folders[rank], RANK=str(rank), **ranks) for rank in range(2)]

    @property
    def outputs(self) -> list[str]:
        """What each has printed."""
        return [command.output for command in self.commands]

    def wait(self) -> list[int]:
        """Waits for the end of both; returns their exit codes."""
        try:
            return [command.wait() for command in self.commands]
        finally:
            for command in self.commands:
                command.process.kill()

    def wait_until_trained(self, run: Path, updates: int) -> None:
        """Waits until some updates are reported."""
        rows = run / "metrics.jsonl"
        self.commands[0].wait_until(lambda: rows.exists() and len(rows_of(run)) >= updates)


def test_one_worker_that_is_told_to_stop_stops_all_and_the_run_goes_on(place: Path) -> None:
    run, words = place / "runs" / "first", ["--name", "first"]
    other = place / "machine"
    (other / "runs" / "first").mkdir(parents=True)
    (other / "runs" / "first" / "result.json").write_text("another's")
    write_toys(other)
    workers = Workers(place, *ENDLESS, *words, other=other)
    workers.wait_until_trained(run, 5)
    os.kill(workers.commands[1].process.pid or 0, signal.SIGTERM)
    assert workers.wait() == [1, 1], workers.outputs
    n_rows = len(rows_of(run))
    first, second = workers.outputs
    assert "resume with train_agent.py --resume --name first, started as before" in first
    assert second == ""
    assert [path.read_text() for path in other.glob("runs/*/*")] == ["another's"], "the first alone writes"

    more = str(read_json(run / "config.json")["n_envs"] * 16 * (n_rows + 2))
    workers = Workers(place, "--resume", *words, "--timesteps", more)
    assert workers.wait() == [0, 0], workers.outputs
    assert read_json(run / "result.json")["finished"]
    updates = [row[UPDATES] for row in rows_of(run)]
    assert updates == list(range(len(updates)))
    assert len(updates) > n_rows


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--n-envs", "3"], "n_envs is 3, which 2 workers cannot share; use a multiple of 2"),
        (["--families", "nosuch"], "unknown family 'nosuch'"),
        (["--context", "local"], "context is local; torchrun is for --context distributed"),
    ],
)
def test_wrong_input_is_said_once_and_ends_all(place: Path, words: list[str], message: str) -> None:
    workers = Workers(place, *FLAGS, "--name", "wrong", *words)
    assert workers.wait() == [2, 2]
    first, second = workers.outputs
    assert message in first
    assert first.count("\n") == 1
    assert second == ""
    assert not (place / "runs").exists()


def test_a_worker_that_is_killed_ends_the_others(place: Path) -> None:
    run = place / "runs" / "killed"
    workers = Workers(place, *ENDLESS, "--name", "killed")
    workers.wait_until_trained(run, 3)
    workers.commands[1].process.kill()
    assert workers.wait() == [1, -9]
    assert "another worker has ended" in workers.outputs[0]
    assert list((run / "checkpoints").iterdir())


def test_torchrun(place: Path) -> None:
    command = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2"]
    command += [str(ROOT / "train_agent.py"), *FLAGS, "--name", "first"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        command, cwd=place, env=environment, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("of one device's step time") == 1
    assert read_json(place / "runs" / "first" / "result.json")["finished"]
