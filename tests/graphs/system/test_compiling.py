"""Compilation ahead: each job runs once, and what was done before a death stays done."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path

import numba
import pytest
from filelock import FileLock

from graphs.system.compiling import compile_ahead

LOCKS: list[FileLock] = []


def die_unless_older(file: Path) -> None:
    if not file.exists():
        file.touch()
        os._exit(1)
    file.unlink()


def fail_with(lock: Path) -> None:
    LOCKS.append(FileLock(lock))
    LOCKS[-1].acquire()
    raise ValueError


def wait_for(lock: Path) -> None:
    while not lock.exists():
        time.sleep(0.01)
    with FileLock(lock, timeout=60.0):
        lock.with_suffix(".held").touch()


def test_jobs_run_once_and_those_that_died_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(numba.config, "CACHE_DIR", str(tmp_path / "cache"))
    log, file, lock = tmp_path / "made", tmp_path / "died", tmp_path / "lock"
    jobs = {"makes": partial(os.mkdir, log), "fails": partial(fail_with, lock)}
    jobs |= {"waits": partial(wait_for, lock), "dies": partial(die_unless_older, file)}
    compile_ahead(jobs)
    assert log.exists()
    assert file.exists()
    assert lock.with_suffix(".held").exists(), "a job that fails keeps no lock"
    log.rmdir()
    assert "4/4" in capfd.readouterr().err
    compile_ahead(jobs)
    assert not log.exists()
    assert not file.exists()
    assert "1/1" in capfd.readouterr().err
    compile_ahead(jobs)
    assert not capfd.readouterr().err


def test_nothing_is_compiled_ahead_where_nobody_has_a_home(monkeypatch: pytest.MonkeyPatch) -> None:
    def home() -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.setattr(Path, "home", home)
    monkeypatch.setattr("numba.config.CACHE_DIR", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    compile_ahead({"job": os.getpid})
