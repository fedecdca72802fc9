"""Compilation ahead runs each job once, and clocks stand still while numba compiles, whatever thread does."""

from __future__ import annotations

import os
import time
from functools import partial
from pathlib import Path
from threading import Event, Thread

import numba
import pytest
from filelock import FileLock
from numba import njit
from numba.core.compiler_lock import global_compiler_lock

from graphs.system.compiling import compile_ahead
from graphs.system.running_time import running_cpu_s, running_s

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


@pytest.fixture
def seconds(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the clocks of `time` say; set its only element."""
    now = [100.0]
    for name in ("perf_counter", "process_time"):
        monkeypatch.setattr(time, name, lambda: now[0])
    return now


@pytest.mark.parametrize("clock", [running_s, running_cpu_s])
def test_a_clock_stands_still_while_the_compiler_is_locked(clock, seconds: list[float]) -> None:
    began_s = clock()
    seconds[0] += 1
    with global_compiler_lock:
        seconds[0] += 10
        with global_compiler_lock:  # a kernel that calls another one
            seconds[0] += 100
        assert clock() - began_s == pytest.approx(1)
        seconds[0] += 1000
    seconds[0] += 2
    assert clock() - began_s == pytest.approx(3)


def test_a_clock_goes_on_after_compiling_has_failed(seconds: list[float]) -> None:
    def fail() -> None:
        with global_compiler_lock:
            seconds[0] += 10
            raise ZeroDivisionError

    began_s = running_s()
    with pytest.raises(ZeroDivisionError):
        fail()
    seconds[0] += 1
    assert running_s() - began_s == pytest.approx(1)


def test_threads_that_compile_side_by_side_are_counted_once(seconds: list[float]) -> None:
    locked, ends = Event(), Event()

    def compile_until_told() -> None:
        with global_compiler_lock:
            locked.set()
            ends.wait()

    threads = [Thread(target=compile_until_told) for _ in range(2)]
    began_s = running_s()
    for thread in threads:
        thread.start()
    locked.wait()
    seconds[0] += 10
    ends.set()
    for thread in threads:
        thread.join()
    seconds[0] += 1
    assert running_s() - began_s == pytest.approx(1)


def test_compiling_a_function_takes_no_running_time() -> None:
    began_s, running_began_s = time.process_time(), running_cpu_s()
    assert njit(lambda x: x + 1)(1) == 2
    took_s = time.process_time() - began_s
    assert running_cpu_s() - running_began_s < took_s / 2
