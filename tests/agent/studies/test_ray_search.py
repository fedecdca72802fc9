"""A search on a Ray cluster; it takes minutes, so it runs when asked for.

Run it by `PLACEWALK_RAY_TESTS=1 pytest tests/agent/studies/test_ray_search.py`.
"""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import psutil
import pytest

from tests.faults.processes import TRAINING
from tests.training_cases import place

__all__ = ["place"]
ROOT = Path(__file__).parents[3]
SEARCH = "--context search --engine ray --name tuned --vary hidden=4:16 order=topo,bfs --trials 3 --jobs 2"
PATIENCE_S = 240.0

pytestmark = pytest.mark.skipif(
    not os.environ.get("PLACEWALK_RAY_TESTS") or find_spec("ray") is None,
    reason="takes minutes; set PLACEWALK_RAY_TESTS=1 and install the extra `ray`",
)


def begin(folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [sys.executable, str(ROOT / "train_agent.py"), *TRAINING.split(), *SEARCH.split(), *words]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment = {**os.environ, "PYTHONPATH": path}
    return subprocess.Popen(command, cwd=folder, env=environment, stderr=subprocess.PIPE, text=True)


def rows(folder: Path) -> list[dict[str, str]]:
    with (folder / "runs" / "tuned" / "trials.csv").open() as file:
        return list(csv.DictReader(file))


def test_a_worker_that_is_killed_is_one_more_attempt_at_one_trial(place: Path) -> None:
    search = begin(place, "--timesteps", "15360", "--trials", "2", "--checkpoint-every", "1")
    deadline = time.monotonic() + PATIENCE_S
    while not list((place / "runs" / "tuned" / "trials").glob("*/checkpoints/*")):
        assert time.monotonic() < deadline
        assert search.poll() is None, search.communicate()[1]
        time.sleep(0.1)
    below = psutil.Process(search.pid).children(recursive=True)
    next(each for each in below if "ray::_Host" in " ".join(each.cmdline())).kill()
    error = search.communicate(timeout=PATIENCE_S)[1]
    assert search.returncode == 0, error
    assert sorted(row["status"] for row in rows(place)) == ["complete", "complete", "stale"]
    assert "Traceback" not in error
    assert "UserWarning" not in error


def test_a_search_goes_on_after_its_driver_was_killed(place: Path) -> None:
    first = begin(place, "--timesteps", "3840")
    deadline = time.monotonic() + PATIENCE_S
    while not list((place / "runs" / "tuned" / "trials").glob("*/metrics.jsonl")):
        assert time.monotonic() < deadline
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.2)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    second = begin(place, "--timesteps", "3840")
    error = second.communicate(timeout=PATIENCE_S)[1]
    assert second.returncode == 0, error
    done = [row for row in rows(place) if row["status"] == "complete"]
    assert len(done) == len({row["trial"] for row in done}) == 3
    assert {row["status"] for row in rows(place)} <= {"complete", "stale"}
    assert "runs/tuned: 3 complete" in error
    third = begin(place, "--timesteps", "3840")
    assert "it was finished before, so nothing was run" in third.communicate(timeout=PATIENCE_S)[1]
    assert third.returncode == 0
