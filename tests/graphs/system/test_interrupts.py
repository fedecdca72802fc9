"""Signals that come while something must not stop half-way."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from threading import Thread

import pytest

from graphs.system.interrupts import SIGNALS, interrupts_put_off


@pytest.fixture(autouse=True)
def raising_handlers() -> Iterator[None]:
    before = {number: signal.signal(number, signal.default_int_handler) for number in SIGNALS}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def interrupted(number: signal.Signals, done: list[str], *, fails: bool) -> None:
    with interrupts_put_off():
        signal.raise_signal(number)
        done.append("the rest")
        if fails:
            raise ValueError


@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize("number", SIGNALS)
def test_a_signal_is_handled_after_the_block_whether_it_fails_or_not(
    number: signal.Signals, fails: bool
) -> None:
    done: list[str] = []
    with pytest.raises(KeyboardInterrupt):
        interrupted(number, done, fails=fails)
    assert done == ["the rest"]
    assert all(signal.getsignal(each) is signal.default_int_handler for each in SIGNALS)


def test_another_thread_just_runs_the_block() -> None:
    done: list[str] = []

    def run() -> None:
        with interrupts_put_off():
            done.append("run")

    thread = Thread(target=run)
    thread.start()
    thread.join()
    assert done == ["run"]
