"""A process that handles requests: it answers, or its death is noticed, whenever that comes."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import wait
from multiprocessing.context import SpawnProcess
from threading import Timer
from typing import Any

import pytest

from graphs.system.interrupts import SIGNALS
from graphs.system.worker_process import Death, WorkerProcess


@pytest.fixture(autouse=True)
def _spawned(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starts processes as users do."""
    monkeypatch.setattr("graphs.system.worker_process.CONTEXT", multiprocessing.get_context("spawn"))


@contextmanager
def worker(handler: Any, timeout_s: float | None = None) -> Iterator[WorkerProcess[Any, Any]]:
    process = WorkerProcess[Any, Any](handler, timeout_s)
    try:
        yield process
    finally:
        process.kill()


def answer_of(process: WorkerProcess[Any, Any]) -> object:
    answer = None
    while answer is None:
        wait([process.connection], min(process.deadline_s - time.monotonic(), 30.0))
        answer = process.answer()
    return answer


def begin_an_answer(process: WorkerProcess[Any, Any]) -> int:
    """Waits until a process of `bytes` is in the midst of a long answer; returns its id."""
    process.give(10_000_000)
    while process._unsent:
        wait([process.connection], 30.0)
        process.answer()
    assert process.connection.poll(30.0)
    assert process._process is not None
    return process._process.pid or 0


def test_requests_are_answered_by_one_process_that_ignores_ctrl_c() -> None:
    with worker(eval) as process:
        pids = set()
        for _ in range(2):
            process.give("__import__('os').getpid()")
            pids.add(answer_of(process))
            assert process._process is not None
            os.kill(process._process.pid or 0, signal.SIGINT)
        assert pids == {process._process.pid}


def test_a_death_in_the_midst_of_an_answer_is_noticed() -> None:
    """`ProcessPoolExecutor` waits for ever here."""
    with worker(bytes) as process:
        os.kill(begin_an_answer(process), signal.SIGKILL)
        assert answer_of(process) == Death("worker killed by SIGKILL")


def test_a_death_in_the_midst_of_a_request_is_noticed_and_another_process_takes_the_next() -> None:
    with worker(len) as process:
        process.give("x")
        assert answer_of(process) == 1
        assert process._process is not None
        os.kill(process._process.pid or 0, signal.SIGSTOP)
        os.kill(process._process.pid or 0, signal.SIGKILL)
        process.give(b"x" * 10_000_000)
        assert answer_of(process) == Death("worker killed by SIGKILL")
        process.give("xy")
        assert answer_of(process) == 2


def test_a_request_that_takes_too_long_is_given_up() -> None:
    with worker(time.sleep, timeout_s=0.2) as process:
        process.give(60)
        began = time.monotonic()
        assert answer_of(process) == Death("no result in 0.2 s")
        assert time.monotonic() - began < 20


@contextmanager
def killed_if_waited_for(process: WorkerProcess[Any, Any]) -> Iterator[None]:
    """Lets a test fail, not hang, that waits for a stopped process."""
    assert process._process is not None
    watch = Timer(30.0, os.kill, (process._process.pid, signal.SIGKILL))
    watch.start()
    try:
        yield
    finally:
        watch.cancel()


def test_a_process_that_is_stopped_while_it_starts_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("graphs.system.worker_process.START_S", 0.5)
    with worker(len, timeout_s=60.0) as process:
        process.give("x")
        assert process._process is not None
        os.kill(process._process.pid or 0, signal.SIGSTOP)
        with killed_if_waited_for(process):
            assert answer_of(process) == Death("did not start in 0.5 s")


@pytest.mark.parametrize("in_answer", [False, True])
def test_a_process_that_is_stopped_in_the_midst_of_a_request_or_an_answer_is_given_up(
    in_answer: bool,
) -> None:
    with worker(bytes if in_answer else len, timeout_s=0.5) as process:
        if in_answer:
            os.kill(begin_an_answer(process), signal.SIGSTOP)
        else:
            process.give("x")
            assert answer_of(process) == 1
            assert process._process is not None
            os.kill(process._process.pid or 0, signal.SIGSTOP)
            process.give(b"x" * 10_000_000)
        with killed_if_waited_for(process):
            assert answer_of(process) == Death("no result in 0.5 s")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_while_a_process_starts_comes_when_it_can_be_ended(
    monkeypatch: pytest.MonkeyPatch, stop: signal.Signals
) -> None:
    start = SpawnProcess.start

    def interrupted(process: SpawnProcess) -> None:
        signal.raise_signal(stop)
        start(process)

    monkeypatch.setattr(SpawnProcess, "start", interrupted)
    # SIGINT too: a test run in the background ignores it.
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    with worker(len) as process:
        with pytest.raises(KeyboardInterrupt):
            process.give("x")
        for number in SIGNALS:
            assert signal.signal(number, before[number]) is signal.default_int_handler
        assert not signal.pthread_sigmask(signal.SIG_BLOCK, ())
        assert process._process is not None
        assert process._process.is_alive()
