"""An explanation of a step as lines of text."""

from __future__ import annotations

from agent.handover.explain import Explanation


def explain_lines(found: Explanation) -> list[str]:
    """Describes what bounds a step, with what removing it would give, in lines of at most 80 characters."""
    lines = [REASONS[found.bottleneck](found), *_what_if(found)]
    if found.use_one_device:
        lines.insert(0, one_device_line(found))
    return lines


def one_device_line(found: Explanation) -> str:
    """Says which device to use alone, and why."""
    assert found.single is not None
    assert found.single_s is not None
    saved = 1.0 - found.total_s / found.single_s
    worth = f"saves {saved:.1%}" if saved > 0 else "saves nothing"
    why = f"placing {worth}, as {CAUSES[found.bottleneck]}"
    return f"use one device, {found.single}: {_ms(found.single_s)}; {why}"


def _memory(found: Explanation) -> str:
    return f"memory bounds it: {found.fullest} would need {found.fullest_share:.0%} of what it has"


def _link(found: Explanation) -> str:
    return f"copies bound it: {found.link} is busy for {_ms(found.link_busy_s)} of {_ms(found.total_s)}"


def _load(found: Explanation) -> str:
    device = found.device_names[found.busiest]
    return f"load bounds it: {device} computes for {_ms(found.busy_s[found.busiest])} of {_ms(found.total_s)}"


def _dependencies(found: Explanation) -> str:
    return f"dependencies bound it: a chain of ops takes {_ms(found.critical_path_s)} on its devices"


def _compute(found: Explanation) -> str:
    return f"compute bounds it: all work, spread evenly, takes {_ms(found.balanced_s)}"


REASONS = {
    "memory": _memory,
    "link": _link,
    "load": _load,
    "dependencies": _dependencies,
    "compute": _compute,
}
"""The line of each bottleneck."""
CAUSES = {
    "memory": "memory bounds it",
    "link": "copies bound it",
    "load": "one device's load bounds it",
    "dependencies": "a chain of ops bounds it",
    "compute": "compute bounds it",
}


def _what_if(found: Explanation) -> list[str]:
    busy = ", ".join(
        f"{name} {seconds / found.total_s:.0%}" if found.total_s else f"{name} 0%"
        for name, seconds in zip(found.device_names, found.busy_s, strict=True)
    )
    alone = "no device has the memory" if found.single_s is None else f"{found.single} {_ms(found.single_s)}"
    return [
        f"step: {_ms(found.total_s)}; devices busy: {busy}",
        f"with free copies: {_ms(found.no_copies_s)}",
        f"with the work spread evenly and no waiting: {_ms(found.balanced_s)}",
        f"the longest chain of ops, copies free: {_ms(found.critical_path_s)}",
        f"one device: {alone}",
        f"fullest memory: {found.fullest} {found.fullest_share:.0%}",
    ]


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g} ms"
