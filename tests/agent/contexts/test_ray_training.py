"""A training by several workers on a Ray cluster ; it takes a minute, so it runs when asked for.

Run it by `PLACEWALK_RAY_TESTS=1 pytest tests/agent/contexts/test_ray_training.py`.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from agent.contexts.engine import RayUnavailableError, check_ray_is_installed
from agent.learn.checkpoints import CheckpointFolder
from agent.learn.metrics import UPDATES
from graphs.system.json_files import read_json
from tests.faults.processes import TRAINING, rows_of
from tests.training_cases import place

__all__ = ["place"]
ROOT = Path(__file__).parents[3]
PATIENCE_S = 240.0
on_ray = pytest.mark.skipif(
    not os.environ.get("PLACEWALK_RAY_TESTS") or find_spec("ray") is None,
    reason="takes minutes; set PLACEWALK_RAY_TESTS=1 and install the extra `ray`",
)


class Training:
    """The command, with two workers on a Ray cluster that it starts."""

    def __init__(self, folder: Path, *words: str) -> None:
        self._output = folder / f"output-{time.monotonic_ns()}"
        command = [sys.executable, str(ROOT / "train_agent.py"), "--engine", "ray", "--workers", "2", *words]
        path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
        environment = {**os.environ, "PYTHONPATH": path}
        with self._output.open("w") as output:
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdout=output, stderr=subprocess.STDOUT
            )

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text()

    def workers(self) -> list[psutil.Process]:
        """The processes that train."""
        below = psutil.Process(self.process.pid).children(recursive=True)
        return [
            process
            for process in below
            if "ray::_Host" in " ".join(process.as_dict(["cmdline"])["cmdline"] or ())
        ]

    def wait_until(self, happened: Callable[[], bool]) -> None:
        """Waits for something that it does."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert self.process.poll() is None, f"it ended before:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.output}"
            time.sleep(0.05)


def n_rows(run: Path) -> int:
    return len(rows_of(run)) if (run / "metrics.jsonl").exists() else 0


@on_ray
def test_a_killed_worker_restarts_all_and_a_stopped_run_goes_on(place: Path) -> None:
    run, flags = place / "runs" / "first", ["--context", "distributed", "--name", "first"]
    training = Training(place, *flags, *TRAINING.split(), "--timesteps", "1000000")
    training.wait_until(lambda: n_rows(run) >= 5)
    workers = training.workers()
    assert len(workers) == 2
    workers[1].kill()
    training.wait_until(
        lambda: "a worker was lost; all workers restart from the last checkpoint" in training.output
    )
    before = n_rows(run)
    training.wait_until(lambda: n_rows(run) >= before + 3)
    training.process.send_signal(signal.SIGTERM)
    assert training.process.wait(PATIENCE_S) == 1, training.output
    assert "resume with train_agent.py --resume --name first, started as before" in training.output
    updates = [row[UPDATES] for row in rows_of(run)]
    assert updates == list(range(len(updates))), "no row is lost or doubled"
    saved = CheckpointFolder(run / "checkpoints").latest()
    assert saved is not None
    assert saved.state["updates"] == updates[-1]

    training = Training(place, "--resume", "--name", "first", "--timesteps", str(128 * (len(updates) + 2)))
    assert training.process.wait(PATIENCE_S) == 0, training.output
    assert read_json(run / "result.json")["finished"]
    assert training.output.count("of one device's step time") == 1
    assert not list(run.parent.glob(".ray-*"))


def test_without_ray_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("agent.contexts.engine.find_spec", lambda _: None)
    with pytest.raises(RayUnavailableError, match=r"pip install 'placewalk\[ray\]'"):
        check_ray_is_installed()
