"""Workers in real processes that train together through torch.distributed, started for the tests."""

from __future__ import annotations

import socket
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.contexts.process_group import ProcessGroup, joined
from tests.fork_server import context

PATIENCE_S = 60.0
Job = Callable[[ProcessGroup, Path], Any]


@dataclass(frozen=True)
class Failure:
    """What a worker failed with."""

    kind: str
    text: str
    where: str


def in_workers(job: Job, folder: Path, size: int = 2) -> list[Any]:
    """Runs a job in several workers; returns what each gives, or its `Failure`, by rank."""
    address, found = f"tcp://127.0.0.1:{free_port()}", context.Queue()
    processes = [
        context.Process(target=_work, args=(job, folder, rank, size, address, found)) for rank in range(size)
    ]
    for process in processes:
        process.start()
    try:
        answers = dict(found.get(timeout=PATIENCE_S) for _ in processes)
    finally:
        for process in processes:
            process.join(5)
            process.kill()
    return [answers[rank] for rank in range(size)]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _work(job: Job, folder: Path, rank: int, size: int, address: str, found: Any) -> None:
    try:
        with joined(rank, size, address) as group:
            answer = job(group, folder)
    except Exception as error:
        answer = Failure(type(error).__name__, str(error), traceback.format_exc())
    found.put((rank, answer))
