"""Quick trainings, what is left of them, and how their files are damaged."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from agent.commands import train as train_agent
from agent.learn.checkpoints import Checkpoint, content_of, read_checkpoint
from tests.faults.processes import rows_of
from tests.training_cases import QUICK

FLAGS = [*QUICK, "--graphs", "graphs.jsonl", "--threads", "1", "--checkpoint-every", "2"]
PER_UPDATE = 128
"""Decisions of one update."""


def train(*arguments: str, code: int = 0) -> None:
    assert train_agent.main(list(arguments)) == code


def begin(name: str, *flags: str, updates: int = 5, code: int = 0) -> Path:
    """Trains, or copies a run that ended well with the same flags, as a run may be copied."""
    run = Path("runs") / name
    trained = Path.cwd().parent / "_".join(["trained", *flags, str(updates)])
    if trained.exists() and not run.exists() and not code:
        shutil.copytree(trained, run)
        return run
    train("--name", name, *FLAGS, "--timesteps", str(PER_UPDATE * updates), *flags, code=code)
    if not code:
        shutil.copytree(run, trained, dirs_exist_ok=True)
    return run


def resume(name: str, *, updates: int = 7, code: int = 0) -> Path:
    train("--resume", "--name", name, "--timesteps", str(PER_UPDATE * updates), code=code)
    return Path("runs") / name


def content(run: Path) -> dict[str, str]:
    """Digest of each file of a run."""
    files = (path for path in run.rglob("*") if path.is_file())
    return {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


def outcome(run: Path) -> tuple[list[dict[str, Any]], str]:
    """What a run has led to: its metrics, without what depends on the clock, and the digest of its policy."""
    return rows_of(run), content(run)["policy.safetensors"]


def checkpoints(run: Path) -> list[Path]:
    return sorted(run.glob("checkpoints/*"))


def refused(capsys: pytest.CaptureFixture[str], name: str, message: str) -> None:
    """Checks that going on with a run is refused in one line, and that nothing in it is changed."""
    run = Path("runs") / name
    before = content(run)
    capsys.readouterr()
    resume(name, code=2)
    error = capsys.readouterr().err
    assert message in error, error
    assert error.count("\n") == 1
    assert content(run) == before


def changed(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], object]) -> None:
    """Writes a checkpoint anew with other content, checksum included."""
    saved = read_checkpoint(path)
    tensors, state = dict(saved.tensors), dict(saved.state)
    change(tensors, state)
    path.write_bytes(content_of(Checkpoint(tensors, state)))


def flipped(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[-100] ^= 16
    path.write_bytes(data)


def emptied(path: Path) -> None:
    path.write_bytes(b"")


DAMAGES = [flipped, emptied]
