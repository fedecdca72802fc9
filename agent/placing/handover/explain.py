"""Advice on what to use, the bounds of a simulated step, and the time that removing each would save."""

from __future__ import annotations

import math
import textwrap
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from envs.objective import Objective, fastest_single
from envs.problem import Problem
from envs.simulator.copies import link_name, simulated_copies
from envs.simulator.data_parallel import DataParallelStep, simulate_data_parallel
from envs.simulator.simulate import StepTime, step_time_s
from graphs.levels import b_level
from graphs.limits import MAX_PER_S
from graphs.op_graph import OpGraph
from graphs.system.array_types import IntArray
from graphs.system.errors import in_ms, shortened

SMALL = 0.05
"""Share of the step below which a gain is no bottleneck."""
UNCOUNTED = " (not counted: --host eager)"
CAPTURE = "capture the step as a CUDA graph (--host graph)"
"""Words on hosts: that none is counted, and what makes them faster."""
WIDTH = 80
"""Characters of a line."""
WORTH_IT = 0.02
"""Share of a step that anything less simple must save."""


Timed = tuple[str, float | None]
"""Words for what runs a step, and the seconds of the step; None where it lacks memory."""


def what_to_use(steps_s: Mapping[str, float | None]) -> str:
    """Returns the name of what to use: the simplest that has the memory, or what is 2 % faster.

    Args:
        steps_s: seconds by name, the simplest first: one device, a placement or pipeline, data parallelism.
            None where it lacks memory.

    Returns:
        Empty where all lack memory.
    """
    use, least_s = "", math.inf
    for name, step_s in steps_s.items():
        if step_s is not None and step_s < (1.0 - WORTH_IT) * least_s:
            use, least_s = name, step_s
    return use


@dataclass(frozen=True)
class Explanation:
    """The bounds of a step; all times are simulated seconds.

    Attributes:
        bottleneck: `memory`, `host`, `link`, `load`, `dependencies` or `compute`.
        no_host_s: the step if the host issued everything at once.
        no_copies_s: the step if copies took no time.
        critical_path_s: the longest chain of ops, each on its device, copies free.
        balanced_s: the work of all ops, spread evenly over the devices by their speed.
        link: the link that is busy longest, "" if nothing is copied.
        single: the fastest device that has the memory for all ops, None if none has.
        data_parallel: what data parallelism would do with the same devices.
        changes: what it changes in the training.
        device_names: of the cluster; all names are shortened.
        host: line of `host_line`, empty if the devices take longer than the host.
        fullest: device with the greatest share of its memory in use.
        fullest_share: that share at its peak.
    """

    bottleneck: str
    total_s: float
    no_host_s: float
    no_copies_s: float
    critical_path_s: float
    balanced_s: float
    busy_s: tuple[float, ...]
    link: str
    link_busy_s: float
    single: str | None
    single_s: float | None
    data_parallel: DataParallelStep
    changes: str
    host: str
    device_names: tuple[str, ...]
    fullest: str
    fullest_share: float

    @property
    def advice(self) -> str:
        """Returns what to use: `one device`, `placement` or `data parallel`; `memory` if none has it."""
        steps_s = {
            "one device": self.single_s,
            "placement": None if self.bottleneck == "memory" else self.total_s,
            "data parallel": self.data_parallel.seconds_per_batch if self.data_parallel.fits else None,
        }
        return what_to_use(steps_s) or "memory"

    @property
    def cause(self) -> str:
        """Returns the bottleneck; `waiting` for copies, where no link is busy for a tenth of the step."""
        waits = self.bottleneck == "link" and 10.0 * self.link_busy_s < self.total_s
        return "waiting" if waits else self.bottleneck


def explain(problem: Problem, device_of: IntArray, step: StepTime) -> Explanation:
    """Finds what bounds a simulated step.

    Args:
        device_of: device index of each op, int64 (n_ops,); not checked.
        step: simulated step under that placement.
    """
    seconds = problem.op_seconds[np.arange(problem.graph.n_ops), device_of]
    objective = Objective(problem)
    at_once = objective.without_host().problem
    path = b_level(problem.graph, seconds, np.zeros(problem.graph.n_tensors))
    times = {
        "total_s": step.total_s,
        "no_host_s": step_time_s(at_once, device_of),
        "no_copies_s": step_time_s(without_copies(problem), device_of),
        "critical_path_s": float(path.max(initial=0.0)),
        "balanced_s": balanced_s(problem),
    }
    link, link_busy_s = _busiest_link(problem, device_of)
    share = step.peak_bytes / problem.cluster.memory_bytes
    names = tuple(shortened(device.name) for device in problem.cluster.devices)
    single, parallel = fastest_single(problem), simulate_data_parallel(problem)
    devices_s = [times["no_host_s"], *([fastest_single(at_once).step_s] if single.fits else [])]
    return Explanation(
        bottleneck=_bottleneck(step, times),
        busy_s=tuple(step.busy_s.tolist()),
        link=shortened(link),
        link_busy_s=link_busy_s,
        single=names[single.device] if single.fits else None,
        single_s=single.step_s if single.fits else None,
        data_parallel=parallel,
        changes=data_parallel_changes([problem.graph], [parallel.n_replicas]),
        host=host_line(objective, min(devices_s)),
        device_names=names,
        fullest=names[int(np.argmax(share))],
        fullest_share=float(share.max()),
        **times,
    )


def without_copies(problem: Problem) -> Problem:
    """Returns the problem with links on which copies take no time to speak of."""
    n = problem.n_devices
    devices = tuple(replace(device, overlap_slowdown=1.0) for device in problem.cluster.devices)
    cluster = replace(
        problem.cluster,
        devices=devices,
        bytes_per_s=np.full((n, n), MAX_PER_S),
        latency_s=np.zeros((n, n)),
        n_half_bytes=0.0,
        sharing="none",
        transfer_per="destination",
        transfer_gap_s=0.0,
        copies="stream",
    )
    return replace(problem, cluster=cluster, seconds=problem.op_seconds)


def balanced_s(problem: Problem) -> float:
    """Seconds in which all devices together do the work, if each takes its part of every op."""
    whole = problem.op_seconds.sum(axis=0)
    return float(1.0 / (1.0 / whole).sum()) if (whole > 0).all() else 0.0


def _bottleneck(step: StepTime, times: dict[str, float]) -> str:
    """Names what gives most when it is removed; where neither copies nor load give, what is left."""
    if not step.fits:
        return "memory"
    total_s, bound_s = times["total_s"], max(times["balanced_s"], times["critical_path_s"])
    gains = {"host": total_s - times["no_host_s"], "link": total_s - times["no_copies_s"]}
    gains["load"] = times["no_copies_s"] - bound_s - gains["host"]
    largest = max(gains, key=gains.__getitem__)
    if gains[largest] > SMALL * total_s:
        return largest
    return "dependencies" if times["critical_path_s"] > times["balanced_s"] else "compute"


def _busiest_link(problem: Problem, device_of: IntArray) -> tuple[str, float]:
    busy_s = defaultdict[str, float](float)
    for copy in simulated_copies(problem, device_of):
        busy_s[link_name(problem, copy)] += copy.end_s - copy.start_s
    return max(busy_s.items(), key=lambda item: item[1], default=("", 0.0))


def explain_lines(why: Explanation) -> list[str]:
    """Says what to use, what bounds a step and what removing it would give, in lines of 80 characters."""
    total_s = why.total_s
    busy = ", ".join(
        f"{name} {seconds / total_s:.0%}" if total_s else f"{name} 0%"
        for name, seconds in zip(why.device_names, why.busy_s, strict=True)
    )
    alone = "no device has the memory" if why.single_s is None else f"{why.single} {in_ms(why.single_s)}"
    return [
        *host_lines(why.host),
        *advice_line(why).splitlines(),
        _reason(why),
        f"step: {in_ms(total_s)}; devices busy: {busy}",
        *([f"with ops issued at once: {in_ms(why.no_host_s)}"] if why.no_host_s < total_s else []),
        f"with free copies: {in_ms(why.no_copies_s)}",
        f"with the work spread evenly and no waiting: {in_ms(why.balanced_s)}",
        f"the longest chain of ops, copies free: {in_ms(why.critical_path_s)}",
        f"one device: {alone}",
        f"fullest memory: {why.fullest} {why.fullest_share:.0%}",
    ]


def advice_line(why: Explanation) -> str:
    """Says what to use: this placement, one device or data parallelism; wrapped at 80 characters.

    If the host bounds the step and is not counted, it is what to use as a CUDA graph.
    """
    placement = "this placement", None if why.bottleneck == "memory" else why.total_s
    single, batch_s = (f"one device, {why.single}", why.single_s), why.data_parallel.seconds_per_batch
    text = as_graph(why.host) + advice_text(why.advice, placement, single, batch_s, CAUSES[why.cause])
    text += f"; {why.changes}" if why.advice == "data parallel" else ""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def advice_text(advice: str, placement: Timed, single: Timed, batch_s: float, cause: str = "") -> str:
    """Says what to use and what that gives, on the terminal and in reports.

    Args:
        advice: `one device`, `placement`, `data parallel` or `memory`.
        batch_s: seconds of data parallelism per batch.
        cause: clause on what bounds the placement.
    """
    (placed, step_s), (device, single_s) = placement, single
    if advice == "memory":
        return f"nothing here has the memory: not {placed}, and no device for the whole model"
    if advice == "data parallel":
        if step_s is None:
            return f"use data parallelism, {in_ms(batch_s)} a batch: {placed} lacks memory"
        return f"use data parallelism: {times_as_fast(step_s, batch_s)} as fast per batch as {placed}"
    if single_s is None:
        return f"use {placed}: no single device has the memory"
    if advice == "placement":
        return f"use {placed}: {times_as_fast(single_s, step_s or 0.0)} as fast as {device}"
    saved = 0.0 if step_s is None else 1.0 - step_s / single_s
    worth = f"saves {saved:.1%}" if saved > 0 else "saves nothing"
    return f"use {device}: {in_ms(single_s)}; {placed} {worth}" + (cause and f", as {cause}")


def data_parallel_changes(graphs: Sequence[OpGraph], n_replicas: Sequence[int]) -> str:
    """Says what data parallelism changes in a training; of an inference, that no answer comes sooner.

    Args:
        n_replicas: number of replicas of each graph.
    """
    several = " to ".join(map(str, sorted({min(n_replicas), max(n_replicas)})))
    if not any("backward" in graph.phases for graph in graphs):
        return f"it runs {several} such batches at once, none sooner than one device does"
    norms = {op for graph in graphs for op in graph.op_types if "batch_norm" in op and "backward" not in op}
    across = "batch norm and losses" if any("no_training" not in op for op in norms) else "losses"
    uncut = next(filter(None, map(_why_uncut, graphs, n_replicas)), "")
    return f"its step averages {several} such batches{uncut}; {across} across samples see one alone"


def _why_uncut(graph: OpGraph, count: int) -> str:
    """Says why a batch cannot be cut into equal ones; empty if it can, or if no shapes are there."""
    inputs = [shape for shape, op in zip(graph.shapes, graph.op_types, strict=True) if op == "input"]
    sizes = {shape[0] for shape in inputs if shape}
    if len(sizes - {1}) > 1:
        return " (inputs of this one share no dimension to cut)"
    uneven = any(size % count for size in sizes - {1} or sizes)
    return f" (this one of {max(sizes)} is not cut evenly)" if uneven else ""


def host_line(objective: Objective, devices_s: float) -> str:
    """Says that the host takes longer to issue a step than the devices to run it; empty if it does not.

    Args:
        devices_s: seconds of the step if it were issued at once.
    """
    host_s, counts = objective.eager_host_s, objective.problem.cluster.issue_s > 0
    if host_s <= devices_s:
        return ""
    return (
        f"the host{UNCOUNTED * (not counts)} needs {in_ms(host_s)} to issue the ops, the devices "
        f"{in_ms(devices_s)}: {CAPTURE}; until then no placement makes it shorter than that"
    )


def host_lines(host: str) -> list[str]:
    """Wraps the line of a host at 80 characters."""
    return textwrap.wrap(host, WIDTH, break_long_words=False, break_on_hyphens=False)


def as_graph(host: str) -> str:
    """Begins an advice that holds for a CUDA graph alone, as a host that is not counted bounds the step."""
    return "as a CUDA graph, " if UNCOUNTED in host else ""


def times_as_fast(longer_s: float, shorter_s: float) -> str:
    """Formats a speed-up."""
    return f"{longer_s / shorter_s:.2f} times" if shorter_s else "many times"


CAUSES = {
    "memory": "memory bounds it",
    "host": "the host that issues ops bounds it",
    "link": "copies bound it",
    "waiting": "waiting for copies bounds it",
    "load": "one device's load bounds it",
    "dependencies": "a chain of ops bounds it",
    "compute": "compute bounds it",
}
"""Clause on each cause."""


def _reason(why: Explanation) -> str:
    """Returns the line of the cause."""
    busiest, of_step = int(np.argmax(why.busy_s)), f"of {in_ms(why.total_s)}"
    device, busy = why.device_names[busiest], f"{in_ms(why.busy_s[busiest])} {of_step}"
    chain = f"a chain of ops takes {in_ms(why.critical_path_s)} on its devices"
    copies = f"{why.link} is busy for {in_ms(why.link_busy_s)} {of_step}"
    return {
        "memory": f"memory bounds it: {why.fullest} would need {why.fullest_share:.0%} of what it has",
        "host": f"the host bounds it: issued at once, as by a CUDA graph, it takes {in_ms(why.no_host_s)}",
        "link": f"copies bound it: {copies}",
        "waiting": f"waiting for copies bounds it: {copies}",
        "load": f"load bounds it: {device} computes for {busy}",
        "dependencies": f"dependencies bound it: {chain}",
        "compute": f"compute bounds it: all work, spread evenly, takes {in_ms(why.balanced_s)}",
    }[why.cause]
