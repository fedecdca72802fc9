"""The published agents of Doppler, Placeto and GDP beside our placers, on Doppler's graphs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agent.experiments.benchmark import BenchmarkRow, benchmark_rows
from agent.experiments.doppler_train import SETTINGS
from agent.experiments.experiment import ExperimentError
from agent.experiments.rows import grouped, markdown_table, read_rows
from agent.instances.instance import Instance, find_instances
from envs.placements.placement import Placement
from graphs.system.json_files import read_json_lines

LAST = 20
"""Episodes whose mean tells what a policy has learned."""


@dataclass(frozen=True)
class AgentRow:
    """A published agent on a graph, as far as it was trained.

    Attributes:
        episodes, of_episodes: done, and those that its settings name.
        best_episode: the first with the shortest step, from 1 on.
        cpu_s: processor seconds of all episodes.
        step_s, last_s: shortest step, and mean of the last episodes, by our simulator.
        differing, difference: episodes whose step by the published simulator differs by more than 1e-3, and
            by how much at most, as shares of the step.
        device_of: a digit for the device of each op, at the shortest step.
    """

    graph: str
    method: str
    episodes: int
    of_episodes: int
    best_episode: int
    cpu_s: float
    step_s: float
    last_s: float
    differing: int
    difference: float
    device_of: str


def method_rows(
    folder: Path, placers: Sequence[str], seconds: Sequence[float]
) -> Iterator[list[AgentRow] | list[BenchmarkRow]]:
    """Makes the rows of the agents, which `doppler.sh` trained in a folder, and those of our placers.

    Args:
        seconds: budgets of our placers, in normalised processor seconds.

    Raises:
        ExperimentError: no agent was trained there.
    """
    agents = [
        _agent_row(instance, method, folder)
        for instance in find_instances(["doppler:*"])
        for method in SETTINGS
        if _episodes(instance, method, folder).exists()
    ]
    if not agents:
        raise ExperimentError(f"{folder}: has no episodes; run sh agent/experiments/doppler.sh {folder} 600")
    yield agents
    yield [row for each in seconds for row in next(benchmark_rows(folder, ["doppler:*"], placers, each))]


def _episodes(instance: Instance, method: str, folder: Path) -> Path:
    return folder / "agents" / f"{_short(instance.name)}-{method}" / "episodes.jsonl"


def _short(instance: str) -> str:
    return instance.partition(":")[2]


def _agent_row(instance: Instance, method: str, folder: Path) -> AgentRow:
    settings = json.loads((folder / "code" / "config_files" / SETTINGS[method]).read_text())
    episodes: list[Any] = [value for _, value in read_json_lines(_episodes(instance, method, folder))]
    steps_s = np.array([instance.simulate(Placement(np.array(each["devices"]))).total_s for each in episodes])
    differences = np.abs(np.array([each["step"] for each in episodes]) / 1e3 / steps_s - 1)
    best = int(steps_s.argmin())
    return AgentRow(
        graph=_short(instance.name),
        method=method,
        episodes=len(episodes),
        of_episodes=settings["num_episode"],
        best_episode=best + 1,
        cpu_s=episodes[-1]["cpu_s"],
        step_s=float(steps_s[best]),
        last_s=float(steps_s[-LAST:].mean()),
        differing=int((differences > 1e-3).sum()),
        difference=float(differences.max()),
        device_of="".join(map(str, episodes[best]["devices"])),
    )


def method_tables(agents_in: Path, placers_in: Path) -> Iterator[str]:
    """Yields the step of each method on each graph, and how far the agents were trained."""
    agents, placers = read_rows(agents_in, AgentRow), read_rows(placers_in, BenchmarkRow)
    lines: dict[tuple[str, str], dict[str, float]] = {}
    for agent in agents:
        lines.setdefault((f"{agent.method}, published code", ""), {})[f"doppler:{agent.graph}"] = agent.step_s
    for (placer, seconds), rows in grouped(placers, lambda row: (row.placer, row.seconds)).items():
        cpu_s = [row.cpu_s for row in rows]
        stops = max(cpu_s) < seconds / 2  # what it finds is the same with any budget
        if stops and any(name == placer for name, _ in lines):
            continue
        label = f"{np.mean(cpu_s):.1g}" if stops else f"{seconds:g}" if seconds else ""
        lines[placer, label] = {row.instance: row.step_s for row in rows}
    graphs = grouped(placers, lambda row: row.instance)
    lines["best known", ""] = {graph: min(row.best_s for row in rows) for graph, rows in graphs.items()}
    lines["lower bound", ""] = {graph: rows[0].bound_s for graph, rows in graphs.items()}
    table = [["step in ms", "CPU s", *map(_short, graphs)]]
    for line, steps in lines.items():
        table.append([*line, *(f"{1e3 * steps[graph]:.2f}" if graph in steps else "" for graph in graphs)])
    yield markdown_table(table)
    table = [["graph", "method", "episodes", "CPU s", "best in", f"mean of the last {LAST}", "differing"]]
    for row in agents:
        numbers = f"{row.episodes:,} of {row.of_episodes:,}", f"{row.cpu_s:.0f}", f"{row.best_episode:,}"
        differing = f"{row.differing}, at most {row.difference:.1%}" if row.differing else "0"
        table.append([row.graph, row.method, *numbers, f"{1e3 * row.last_s:.2f}", differing])
    yield markdown_table(table)
