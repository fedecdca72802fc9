"""Trials, workers and searches on a Ray cluster of this machine, in minutes; they run when asked for.

Run them by `PLACEWALK_RAY_TESTS=1 pytest tests/agent/contexts/test_ray.py`.
"""

from __future__ import annotations

import csv
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

from agent.commands import evaluate as command
from agent.evaluation.config import EvaluationConfig
from agent.evaluation.inputs import make_spec
from agent.evaluation.results import Failure
from agent.learn.checkpoints import CheckpointFolder
from agent.learn.metrics import UPDATES
from graphs.system.json_files import read_json
from tests.faults.processes import TRAINING, rows_of, trials_of
from tests.training_cases import place

__all__ = ["place"]
ROOT = Path(__file__).parents[3]
PATIENCE_S = 240.0
on_ray = pytest.mark.skipif(
    not os.environ.get("PLACEWALK_RAY_TESTS") or find_spec("ray") is None,
    reason="takes minutes; set PLACEWALK_RAY_TESTS=1 and install the extra `ray`",
)
TRIALS = "--graphs graphs.jsonl --placers random heft annealing --seeds 2 --budget 50"
SEARCH = (
    "--context search --name tuned --vary hidden=4:16 order=topo,bfs --trials 2 --jobs 2 --timesteps 15360"
)


class Training:
    """The command, on a Ray cluster that it starts."""

    def __init__(self, folder: Path, words: str) -> None:
        self._output = folder / f"output-{time.monotonic_ns()}"
        command = [sys.executable, str(ROOT / "train_agent.py"), "--engine", "ray", *words.split()]
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

    def wait_until(self, happened: Callable[[], object]) -> None:
        """Waits for something that it does."""
        deadline = time.monotonic() + PATIENCE_S
        while not happened():
            assert self.process.poll() is None, f"it ended before:\n{self.output}"
            assert time.monotonic() < deadline, f"it did not happen:\n{self.output}"
            time.sleep(0.05)


@on_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_the_rows_are_those_of_one_process(place: Path) -> None:
    for out, words in (("ray", ["--engine", "ray", "--jobs", "2"]), ("here", [])):
        assert command.main([*TRIALS.split(), "--out", out, *words]) == 0
    assert trials_of(Path("ray")) == trials_of(Path("here"))


@on_ray
@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_trial_whose_process_is_killed_is_tried_once_more(place: Path) -> None:
    """A search of a minute, in a process that is killed after 12 seconds, its start included."""
    from agent.contexts.ray_process import run_trials_on_ray

    settings = {"graphs": ("graphs.jsonl",), "placers": ("annealing", "heft"), "seeds": 1, "seconds": 60.0}
    spec, _ = make_spec(EvaluationConfig.from_json(settings, "test"))
    annealing, heft = (
        next(task for task in spec.tasks() if task.placer == placer) for placer in ("annealing", "heft")
    )
    found = dict(run_trials_on_ray(spec, [annealing, heft], jobs=2, timeout_s=12.0))
    assert not isinstance(found[heft], Failure)
    assert found[annealing] == Failure(spec.key(annealing), 2, "no result in 12 s")


def n_rows(run: Path) -> int:
    return len(rows_of(run)) if (run / "metrics.jsonl").exists() else 0


@on_ray
def test_a_killed_worker_restarts_all_and_a_stopped_run_goes_on(place: Path) -> None:
    run = place / "runs" / "first"
    words = "--workers 2 --context distributed --name first"
    training = Training(place, f"{words} {TRAINING} --timesteps 1000000")
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

    more = 128 * (len(updates) + 2)
    training = Training(place, f"--workers 2 --resume --name first --timesteps {more}")
    assert training.process.wait(PATIENCE_S) == 0, training.output
    assert read_json(run / "result.json")["finished"]
    assert training.output.count("of one device's step time") == 1
    assert not list(run.parent.glob(".ray-*"))


@on_ray
def test_a_search_goes_on_after_its_driver_or_a_worker_was_killed(place: Path) -> None:
    checkpoints = place / "runs" / "tuned" / "trials"
    first = Training(place, f"{TRAINING} {SEARCH}")
    first.wait_until(lambda: list(checkpoints.glob("*/checkpoints/*")))
    first.process.kill()
    first.process.wait()
    second = Training(place, f"{TRAINING} {SEARCH}")
    second.wait_until(second.workers)
    second.workers()[0].kill()
    assert second.process.wait(PATIENCE_S) == 0, second.output
    assert "runs/tuned: 2 complete" in second.output
    assert "Traceback" not in second.output
    assert "UserWarning" not in second.output
    with (place / "runs" / "tuned" / "trials.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert sorted(row["status"] for row in rows) == ["complete"] * 2 + ["stale"] * 3
    assert len({row["trial"] for row in rows}) == 2
    third = Training(place, f"{TRAINING} {SEARCH}")
    assert third.process.wait(PATIENCE_S) == 0, third.output
    assert "it was finished before, so nothing was run" in third.output


def test_without_ray_nothing_begins(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("agent.contexts.engine.find_spec", lambda _: None)
    assert command.main([*TRIALS.split(), "--out", "out", "--engine", "ray"]) == 2
    assert "pip install 'placewalk[ray]'" in capsys.readouterr().err
    assert not Path("out").exists()
