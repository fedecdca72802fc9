"""Placers of pipelines on the published profiles of PipeDream and Piper."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from agent.instances.profiles import EQUAL, UNEQUAL, profile_cluster, profile_graph, profile_paths
from agent.lab.experiment import ExperimentError
from agent.lab.rows import axis, markdown_table, mean_cell, read_rows
from agent.pipelines.dynamic.placers import max_load_s
from agent.pipelines.search import place_pipeline
from agent.placers.base import Budget
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.system.progress import followed

SEARCHES, PROGRAMMES = ("annealing", "refine"), ("pipedream", "ideals", "piper")
PLACERS = ("single", "equal-layers", "equal-params", "equal-time", *PROGRAMMES, *SEARCHES)
COUNTS = (2, 4, 8)
MICROBATCHES = 8
EXACT, EXACT_PIECES, EXACT_DEVICES, EXACT_SECONDS = "exact", 50, 4, 600.0
"""The placer that proves plans, the largest problems that it gets, and its seconds."""


@dataclass(frozen=True)
class ProfileRow:
    """The plan of a placer.

    Attributes:
        devices: number of devices.
        speeds: `EQUAL` or `UNEQUAL`.
        max_load_s: seconds per microbatch of the busiest stage.
        proven: whether the plan was proven the best of its kind.
        seconds: processor seconds of the placer.
    """

    graph: str
    devices: int
    speeds: str
    placer: str
    max_load_s: float
    step_s: float
    throughput_per_s: float
    fits: bool
    stages: int
    proven: bool
    seconds: float


def profile_rows(folder: Path, graphs: Sequence[str], evaluations: int) -> Iterator[list[ProfileRow]]:
    """Makes the rows of all placers.

    Raises:
        ExperimentError: an unknown graph.
    """
    known = profile_paths()
    if unknown := sorted({*graphs} - {*known}):
        raise ExperimentError(f"unknown graph '{unknown[0]}'; known are {', '.join(known)}")
    found = []
    for name in followed(graphs or list(known), "profiles"):
        graph = profile_graph(known[name])
        for n_devices in COUNTS:
            for speeds in (EQUAL, UNEQUAL):
                problem = Problem(graph, profile_cluster(n_devices, speeds))
                pipelined = PipelinedProblem(problem, Pipeline("1f1b", MICROBATCHES))
                small = pipelined.chain.n_pieces <= EXACT_PIECES and n_devices <= EXACT_DEVICES
                for placer in (*PLACERS, EXACT)[: len(PLACERS) + small]:
                    found.append(profile_row(pipelined, speeds, placer, evaluations))
    yield found


def profile_row(pipelined: PipelinedProblem, speeds: str, placer: str, evaluations: int) -> ProfileRow:
    """Runs a placer; `exact` has twenty times the evaluations."""
    budget = Budget(20 * evaluations, EXACT_SECONDS) if placer == EXACT else Budget(evaluations)
    result = place_pipeline(placer, pipelined, budget)
    return ProfileRow(
        pipelined.problem.graph.name,
        pipelined.problem.n_devices,
        speeds,
        placer,
        max_load_s(pipelined, result.cuts),
        result.step.total_s,
        result.step.throughput_per_s,
        result.step.fits,
        len(result.cuts.first),
        result.is_proven,
        result.cpu_s,
    )


Case = tuple[str, int, str]
"""A graph, a number of devices, and their speeds."""


def profile_tables(file: Path) -> Iterator[str]:
    """Yields throughputs over the best dynamic programme, and max-loads over the least of the programmes."""
    cases: dict[Case, dict[str, ProfileRow]] = defaultdict(dict)
    for row in read_rows(file, ProfileRow):
        cases[row.graph, row.devices, row.speeds][row.placer] = row
    for what, attribute in (("step", "step_s"), ("max-load", "max_load_s")):
        ratios: dict[str, dict[Case, float]] = defaultdict(dict)
        for case, rows in cases.items():
            best = min(getattr(rows[name], attribute) for name in PROGRAMMES)
            for name, row in rows.items():
                if name != EXACT or row.proven:
                    ratios[name][case] = getattr(row, attribute) / best
        yield _table(what, ratios)


def _table(what: str, ratios: dict[str, dict[Case, float]]) -> str:
    """Formats geometric means over graphs by number of devices and speeds, and the range over all cases."""
    columns = axis(case[1:] for own in ratios.values() for case in own)
    head = [f"{what} over best programme", *(f"{n} {speeds}" for n, speeds in columns), "least", "most"]
    body = []
    for name in (*PLACERS, EXACT):
        own = ratios[name]
        means = [mean_cell(ratio for case, ratio in own.items() if case[1:] == each) for each in columns]
        ends = [f"{end(own.values()):.3f}" for end in (min, max)] if own else ["", ""]
        body.append([name, *means, *ends])
    return markdown_table([head, *body])
