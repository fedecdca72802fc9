"""Traces of a simulated step, as Perfetto and chrome://tracing read them."""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

import numpy as np

from envs.problem import Problem
from envs.simulator.copies import TO_ALL, Copy, link_name, simulated_copies
from envs.simulator.simulate import StepTime
from graphs.system.array_types import IntArray
from graphs.system.json_files import write_json_atomic

DEVICES, LINKS = 0, 1
"""Process numbers of the tracks."""

Event = dict[str, Any]


def write_trace(path: str | os.PathLike[str], trace: dict[str, Any]) -> None:
    """Writes a trace; `.gz` compresses it."""
    write_json_atomic(path, trace, indent=None)


def step_trace(problem: Problem, device_of: IntArray, step: StepTime) -> dict[str, Any]:
    """Makes the trace of a simulated step: a track per device and per link, times in microseconds.

    Where copies over a link do not wait for each other, those at one time are on tracks of their own.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
        step: simulated step under that placement.

    Source: the trace-event format, "JSON Object Format" with complete events ("X").
    """
    events = [_named("process_name", DEVICES, 0, "devices"), _named("process_name", LINKS, 0, "links")]
    events += device_names(problem)
    events += _op_events(problem, device_of, step)
    events += _copy_events(problem, simulated_copies(problem, device_of))
    return {"displayTimeUnit": "ms", "traceEvents": events}


def device_names(problem: Problem) -> list[Event]:
    """Makes the events that name the tracks of devices."""
    devices = enumerate(problem.cluster.devices)
    return [_named("thread_name", DEVICES, index, device.name) for index, device in devices]


def _op_events(problem: Problem, device_of: IntArray, step: StepTime) -> Iterable[Event]:
    graph = problem.graph
    for op in np.flatnonzero(step.finish_s > step.start_s).tolist():
        details = {
            "type": graph.op_types[op],
            "module": graph.modules[op],
            "phase": graph.phases[op],
            "source": graph.sources[op],
        }
        yield complete_event(
            graph.op_names[op],
            (DEVICES, int(device_of[op])),
            (float(step.start_s[op]), float(step.finish_s[op])),
            {key: value for key, value in details.items() if value},
        )


def _copy_events(problem: Problem, copies: Iterable[Copy]) -> list[Event]:
    graph = problem.graph
    lanes: dict[str, list[tuple[int, float]]] = {}  # of each link: tracks, and when each is free
    names: list[Event] = []
    events: list[Event] = []
    for copy in copies:
        link = link_name(problem, copy)
        tracks = lanes.setdefault(link, [])
        # Ends are sums of floats; what touches is no overlap.
        lane = next(
            (number for number, (_, free_s) in enumerate(tracks) if free_s <= copy.start_s + 1e-12), None
        )
        if lane is None:
            lane, track = len(tracks), sum(map(len, lanes.values()))
            tracks.append((track, 0.0))
            names.append(_named("thread_name", LINKS, track, f"{link} ({lane + 1})" if lane else link))
        track = tracks[lane][0]
        tracks[lane] = (track, copy.end_s)
        to = "all" if copy.target == TO_ALL else problem.cluster.devices[copy.target].name
        events.append(
            complete_event(
                graph.op_names[graph.tensor_producer[copy.tensor]],
                (LINKS, track),
                (copy.start_s, copy.end_s),
                {
                    "to": to,
                    "bytes": float(graph.tensor_bytes[copy.tensor]),
                    "arrival_us": copy.arrival_s * 1e6,
                },
            )
        )
    return names + events


def complete_event(name: str, track: tuple[int, int], span_s: tuple[float, float], args: Event) -> Event:
    """Makes the event of something that takes time, on a track: process and thread."""
    start_s, end_s = span_s
    pid, tid = track
    return {
        "name": name,
        "ph": "X",
        "pid": pid,
        "tid": tid,
        "ts": start_s * 1e6,
        "dur": (end_s - start_s) * 1e6,
        "args": args,
    }


def _named(what: str, pid: int, tid: int, name: str) -> Event:
    """Makes the event that names a process or a thread."""
    return {"name": what, "ph": "M", "pid": pid, "tid": tid, "args": {"name": name}}
