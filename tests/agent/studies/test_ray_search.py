"""A search on a Ray cluster; it takes minutes, so it runs when asked for.

Run it by `PLACEWALK_RAY_TESTS=1 pytest tests/agent/studies/test_ray_search.py`.
"""

from __future__ import annotations

import csv
import os
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
SEARCH = "--context search --engine ray --name tuned --vary hidden=4:16 order=topo,bfs --trials 2 --jobs 2"
PATIENCE_S = 240.0

pytestmark = pytest.mark.skipif(
    not os.environ.get("PLACEWALK_RAY_TESTS") or find_spec("ray") is None,
    reason="takes minutes; set PLACEWALK_RAY_TESTS=1 and install the extra `ray`",
)


def begun(folder: Path, n_checkpoints: int) -> subprocess.Popen[str]:
    """A search whose trials have written that many checkpoints."""
    command = [sys.executable, str(ROOT / "train_agent.py"), *TRAINING.split(), *SEARCH.split()]
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    environment, words = {**os.environ, "PYTHONPATH": path}, ["--timesteps", "15360"]
    search = subprocess.Popen(
        [*command, *words], cwd=folder, env=environment, stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + PATIENCE_S
    while len(list((folder / "runs" / "tuned" / "trials").glob("*/checkpoints/*"))) < n_checkpoints:
        assert time.monotonic() < deadline
        assert search.poll() is None, search.communicate()[1]
        time.sleep(0.1)
    return search


def test_a_search_goes_on_after_its_driver_or_a_worker_was_killed(place: Path) -> None:
    first = begun(place, 1)
    first.kill()
    first.communicate()
    second = begun(place, 1)
    deadline = time.monotonic() + PATIENCE_S
    hosts: list[psutil.Process] = []
    while not hosts:
        assert time.monotonic() < deadline
        below = psutil.Process(second.pid).children(recursive=True)
        hosts = [
            each for each in below if "ray::_Host" in " ".join(each.as_dict(["cmdline"])["cmdline"] or ())
        ]
    hosts[0].kill()
    error = second.communicate(timeout=PATIENCE_S)[1]
    assert second.returncode == 0, error
    assert "runs/tuned: 2 complete" in error
    assert "Traceback" not in error
    assert "UserWarning" not in error
    with (place / "runs" / "tuned" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["status"] for row in rows) == ["complete"] * 2 + ["stale"] * 3
    assert len({row["trial"] for row in rows}) == 2
    third = begun(place, 0)
    assert "it was finished before, so nothing was run" in third.communicate(timeout=PATIENCE_S)[1]
