"""Evaluations whose processes are killed, crash or hang, and whose folder is full, shared or damaged."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from agent.evaluation.run import evaluate, open_folder
from graphs.system.folders import FolderError
from tests.agent.evaluation_cases import quiet
from tests.faults.evaluation_script import make_spec
from tests.faults.processes import table_of, trials_of

ROOT = Path(__file__).parents[2]
Rows = list[dict[str, str]]


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Rows:
    """What one process finds; afterwards all that other processes need is compiled."""
    folder = tmp_path_factory.mktemp("undisturbed") / "out"
    assert not evaluate(make_spec(), folder, report=quiet).failures
    return trials_of(folder)


class Script:
    """A running evaluation, in a session of its own."""

    def __init__(self, out: Path, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.evaluation_script", str(out), *words],
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        assert self.lines(1) == ["begun\n"]

    def lines(self, n_lines: int) -> list[str]:
        """Waits for the next lines that it prints."""
        assert self.process.stdout is not None
        return [self.process.stdout.readline() for _ in range(n_lines)]

    def members(self, word: str = "") -> list[int]:
        """Process ids of the session whose command line has a word; one that has ended has none."""
        return [pid for pid in map(int, filter(str.isdigit, os.listdir("/proc"))) if self._has(pid, word)]

    def workers(self) -> list[int]:
        return self.members("spawn_main")

    def _has(self, pid: int, word: str) -> bool:
        try:
            command = Path(f"/proc/{pid}/cmdline").read_text()
            return os.getsid(pid) == self.process.pid and bool(command) and word in command
        except OSError:
            return False

    def end(self) -> tuple[int, str, str]:
        """Waits for its end and that of its processes; returns exit code, output and errors."""
        out, error = self.process.communicate(timeout=90)
        assert wait_for(lambda: not self.members()), "processes are left"
        return self.process.returncode, out, error


@contextmanager
def script(out: Path, *words: str) -> Iterator[Script]:
    running = Script(out, *words)
    try:
        yield running
    finally:
        for pid in running.members():
            os.kill(pid, signal.SIGKILL)
        running.process.communicate()


def wait_for(condition: Callable[[], object], timeout_s: float = 60.0) -> bool:
    give_up = time.monotonic() + timeout_s
    while time.monotonic() < give_up:
        if condition():
            return True
        time.sleep(0.02)
    return False


def test_workers_that_are_killed_at_any_moment_change_no_row(tmp_path: Path, undisturbed: Rows) -> None:
    """Kills in a trial and while starting; a trial that is hit twice is made by the next evaluation."""
    draw = random.Random(0)
    out = tmp_path / "out"
    n_killed = 0
    with script(out) as running:
        while n_killed < 6 and running.process.poll() is None:
            time.sleep(draw.uniform(0.0, 0.6))
            if workers := running.workers():
                os.kill(draw.choice(workers), signal.SIGKILL)
                n_killed += 1
        code, _, error = running.end()
    assert n_killed >= 2
    assert "Traceback" not in error
    failed = table_of(out / "failures.csv") if code == 1 else []
    assert code == (1 if failed else 0)
    assert len(trials_of(out)) == len(undisturbed) - len(failed)
    assert not evaluate(make_spec(), out, report=quiet).failures
    assert trials_of(out) == undisturbed


def test_what_goes_wrong_in_a_trial_fails_that_trial(tmp_path: Path, undisturbed: Rows) -> None:
    out = tmp_path / "out"
    faults = ["segfault", "exits", "hangs", "raises", "memory"]
    with script(out, "--graphs", "1", "--placers", *faults, "single", "--timeout", "5") as running:
        code, printed, _ = running.end()
    assert code == 1
    failures = table_of(out / "failures.csv")
    reasons = {(row["placer"], row["tries"], row["reason"]) for row in failures}
    assert reasons == {
        ("segfault", "2", "worker killed by SIGSEGV"),
        ("exits", "2", "worker died (exit code 3)"),
        ("hangs", "2", "no result in 5 s"),
        ("raises", "1", r"RuntimeError: \x1b[31mred and more"),
        ("memory", "1", "MemoryError"),
    }
    assert [row["placer"] for row in failures] == faults
    assert [row["placer"] for row in trials_of(out)] == ["single"]
    log = (out / "failures.log").read_text()
    assert log.count("Traceback") == 2
    assert "raises, seed 0, on graph g0 and cluster toy\n" in log
    assert "\x1b" not in log + printed
    assert "5 trials failed; see failures.csv" in printed
    assert "5 trials failed; see failures.csv" in (out / "report.html").read_text()


def test_a_folder_has_one_evaluation_at_a_time(tmp_path: Path) -> None:
    """The second is refused while the first runs; when that is killed, nothing of it holds the folder."""
    out = tmp_path / "out"
    with script(out, "--placers", "hangs", "--seeds", "1") as running:
        assert running.lines(2) == ["hangs\n", "hangs\n"]
        before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
        with pytest.raises(FolderError, match="out: is in use by another process"):
            evaluate(make_spec(), out, report=quiet)
        assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
        running.process.kill()
        running.end()
    (out / "settings.json").unlink()
    (out / "journal.jsonl").unlink()
    (out / ".settings.json.1.tmp").touch()
    open_folder(out, make_spec())
    assert {path.name for path in out.iterdir()} == {".lock", "settings.json"}
