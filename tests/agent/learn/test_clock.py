"""The clock: every phase gets its share, and what one leaves unused flows on."""

from __future__ import annotations

import math

import pytest

from agent.learn import clock as clock_module
from agent.learn.clock import Clock, Elapsed, between


@pytest.fixture
def now(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The time that clocks read; set its only element."""
    seconds = [100.0]
    monkeypatch.setattr(clock_module, "running_s", lambda: seconds[0])
    return seconds


def test_phases_end_one_after_the_other(now: list[float]) -> None:
    clock = Clock(120)
    clock.share_out({"a": 0.2, "b": 0.3, "c": 0.5})
    assert [clock.left_s(phase) for phase in "abc"] == pytest.approx([24, 60, 120])
    now[0] += 30
    assert [clock.left_s(phase) for phase in "abc"] == pytest.approx([-6, 30, 90])
    assert clock.wall_s == 30
    assert clock.progress == pytest.approx(0.25)
    assert clock.progress_since(20, "b") == pytest.approx(10 / 40)
    assert clock.progress_since(30, "a") == 1.0
    now[0] += 1000
    assert clock.progress == clock.progress_since(20, "b") == 1.0


def test_phases_that_are_left_out_give_their_time_away(now: list[float]) -> None:
    clock = Clock(60)
    clock.share_out({"a": 0.1, "b": 0.3})
    assert [clock.left_s(phase) for phase in "ab"] == pytest.approx([15, 60])


def test_time_before_an_interruption_counts(now: list[float]) -> None:
    clock = Clock(60)
    clock.share_out({"a": 1.0})
    clock.go_on_from(Elapsed(45.0, 30.0))
    now[0] += 5
    assert clock.wall_s == 50
    assert clock.elapsed.wall_s == 50
    assert 30 <= clock.elapsed.cpu_s < 40
    assert clock.left_s("a") == 10


def test_without_a_limit_no_phase_ends() -> None:
    clock = Clock(math.inf)
    clock.share_out({"a": 0.5, "b": 0.5})
    assert clock.left_s("a") == clock.left_s("b") == math.inf
    assert clock.progress == clock.progress_since(0.0, "a") == 0.0


def test_a_schedule_goes_from_first_to_last() -> None:
    assert [between(4.0, 2.0, progress) for progress in (0.0, 0.5, 1.0)] == [4.0, 3.0, 2.0]
