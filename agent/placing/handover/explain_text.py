"""An explanation of a step as lines of text."""

from __future__ import annotations

from collections.abc import Callable

from agent.placing.handover.explain import Explanation
from graphs.system.numbers import in_ms


def explain_lines(found: Explanation) -> list[str]:
    """Says what to use, what bounds a step and what removing it would give, in lines of 80 characters."""
    return [advice_line(found), REASONS[found.cause](found), *_what_if(found)]


def advice_line(found: Explanation) -> str:
    """Says what to use: this placement, one device or data parallelism, and what that gives."""
    return ADVICE[found.advice](found)


def _use_placement(found: Explanation) -> str:
    if found.single_s is None:
        return f"use this placement, {in_ms(found.total_s)}: no single device has the memory"
    times = _times(found.single_s, found.total_s)
    return f"use this placement: {times} as fast as one device, {found.single}"


def _use_one_device(found: Explanation) -> str:
    assert found.single_s is not None
    saved = 0.0 if found.bottleneck == "memory" else 1.0 - found.total_s / found.single_s
    worth = f"saves {saved:.1%}" if saved > 0 else "saves nothing"
    why = f"placing {worth}, as {CAUSES[found.cause]}"
    return f"use one device, {found.single}: {in_ms(found.single_s)}; {why}"


def _use_data_parallel(found: Explanation) -> str:
    batch_s = found.data_parallel.seconds_per_batch
    if found.bottleneck == "memory":
        return f"use data parallelism, {in_ms(batch_s)} a batch: this placement lacks memory"
    return f"use data parallelism: {_times(found.total_s, batch_s)} as fast per batch as this placement"


def _use_nothing(found: Explanation) -> str:
    return "nothing here has the memory: not this placement, and no device for the whole model"


ADVICE = {
    "placement": _use_placement,
    "one device": _use_one_device,
    "data parallel": _use_data_parallel,
    "memory": _use_nothing,
}
"""The line of each advice."""


def _times(longer_s: float, shorter_s: float) -> str:
    return f"{longer_s / shorter_s:.2f} times" if shorter_s else "many times"


REASONS: dict[str, Callable[[Explanation], str]] = {
    "memory": lambda it: f"memory bounds it: {it.fullest} would need {it.fullest_share:.0%} of what it has",
    "link": lambda it: (
        f"copies bound it: {it.link} is busy for {in_ms(it.link_busy_s)} of {in_ms(it.total_s)}"
    ),
    "waiting": lambda it: (
        f"waiting for copies bounds it: {it.link} is busy for {in_ms(it.link_busy_s)} of {in_ms(it.total_s)}"
    ),
    "load": lambda it: (
        f"load bounds it: {it.device_names[it.busiest]} computes for {in_ms(it.busy_s[it.busiest])} "
        f"of {in_ms(it.total_s)}"
    ),
    "dependencies": lambda it: (
        f"dependencies bound it: a chain of ops takes {in_ms(it.critical_path_s)} on its devices"
    ),
    "compute": lambda it: f"compute bounds it: all work, spread evenly, takes {in_ms(it.balanced_s)}",
}
"""The line of each bottleneck."""
CAUSES = {
    "memory": "memory bounds it",
    "link": "copies bound it",
    "waiting": "waiting for copies bounds it",
    "load": "one device's load bounds it",
    "dependencies": "a chain of ops bounds it",
    "compute": "compute bounds it",
}


def _what_if(found: Explanation) -> list[str]:
    busy = ", ".join(
        f"{name} {seconds / found.total_s:.0%}" if found.total_s else f"{name} 0%"
        for name, seconds in zip(found.device_names, found.busy_s, strict=True)
    )
    alone = (
        "no device has the memory" if found.single_s is None else f"{found.single} {in_ms(found.single_s)}"
    )
    return [
        f"step: {in_ms(found.total_s)}; devices busy: {busy}",
        f"with free copies: {in_ms(found.no_copies_s)}",
        f"with the work spread evenly and no waiting: {in_ms(found.balanced_s)}",
        f"the longest chain of ops, copies free: {in_ms(found.critical_path_s)}",
        f"one device: {alone}",
        f"fullest memory: {found.fullest} {found.fullest_share:.0%}",
    ]
