"""Placers of pipelines on sealed models and several clusters, in equal processor time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

from agent.lab.equal_time.sealed import sealed_graphs
from agent.lab.rows import Row, grouped, kept_rows, markdown_table, mean_cell, read_rows
from agent.pipelines.data_parallel import simulate_data_parallel_pipeline
from agent.pipelines.search import place_pipeline
from agent.placers.base import Budget
from envs.cluster.cluster import Cluster
from envs.cluster.links import Link, measured_links
from envs.cluster.presets import INFINIBAND_BYTES_PER_S, NODE_LATENCY_S, calibrated, get_cluster
from envs.pipeline.pipeline import Pipeline
from envs.pipeline.simulate import PipelinedProblem
from envs.problem import Problem
from graphs.system.progress import followed

KNOWN = ("resnet", "moe", "llama", "t5", "large-gpt")
"""Families of the benchmark set, drawn from sealed seeds."""
NEW = ("unet", "dit", "towers", "conformer", "mixer")
"""Families that nothing was tuned on."""
SLOW_LINK, LITTLE = Link(1.25e9, 50e-6, 0.0), 0.25
"""10 Gb/s; share of its memory that one device keeps."""


def nodes(kinds: Sequence[str], link: str) -> Cluster:
    """Makes nodes of four devices: a measured link within a node, InfiniBand between nodes."""
    within = calibrated("nodes", kinds, measured_links()[link], sharing="pair")
    node = np.arange(len(kinds)) // 4
    local = node[:, None] == node[None, :]
    return replace(
        within,
        bytes_per_s=np.where(local, within.bytes_per_s, INFINIBAND_BYTES_PER_S),
        latency_s=np.where(local, within.latency_s, NODE_LATENCY_S),
        n_half_bytes=np.where(local, within.n_half_bytes, 0.0),
    )


def _little_memory() -> Cluster:
    equal = get_cluster("4xv100-sxm2")
    *others, last = equal.devices
    return replace(equal, devices=(*others, replace(last, memory_bytes=LITTLE * last.memory_bytes)))


CLUSTERS: Mapping[str, Callable[[], Cluster]] = {
    "4 V100": partial(get_cluster, "4xv100-sxm2"),
    "2 A100 + 2 V100": partial(nodes, ["a100-pcie-40gb"] * 2 + ["v100-pcie-16gb"] * 2, "pcie3"),
    "2 nodes of 4 A100": partial(nodes, ["a100-sxm4-40gb"] * 8, "a100-nvswitch"),
    "4 V100, 10 Gb/s": partial(calibrated, "slow", ["v100-sxm2-16gb"] * 4, SLOW_LINK, sharing="pair"),
    "4 V100, one small": _little_memory,
    "V100 + host": lambda: replace(get_cluster("gpu+cpu"), sharing="pair"),
    "8 A100": lambda: replace(get_cluster("8xa100-sxm4"), sharing="pair"),
    "4 A100 + 4 T4": partial(nodes, ["a100-pcie-40gb"] * 4 + ["t4"] * 4, "pcie3"),
}
"""Clusters by the name that the page has; links are of each pair of devices."""
COUNTS = (4, 16, 64)
ONE, LAYERS, DATA, REFINE = "single", "equal-layers", "data parallelism", "refine"
PROGRAMME, BETTER = "programme", "data parallelism or single"
KINDS = ((False, ""), (True, "plain "))
"""The best dynamic programme; the better of data parallelism and one device."""
PROGRAMMES, REPLICATE = ("pipedream", "ideals", "piper"), ("pipedream", "piper", REFINE)
PLAIN = (ONE, LAYERS, "pipedream", "ideals", REFINE)
"""Placers whose plans have neither replicas nor recomputation; `piper` would do what `ideals` does."""
EVALUATIONS = 1_000
"""Of all placers but `refine`: they end by themselves."""


@dataclass(frozen=True)
class ClusterRow:
    """The plan of a placer.

    Attributes:
        plain: whether placers left out replicas and recomputation.
        seconds: processor seconds of the placer.
    """

    graph: str
    family: str
    cluster: str
    microbatches: int
    placer: str
    plain: bool
    throughput_per_s: float
    fits: bool
    stages: int
    devices: int
    recomputed: int
    seconds: float


def cluster_rows(
    folder: Path, families: Sequence[str], seconds: float, first_seed: int
) -> Iterator[list[ClusterRow]]:
    """Makes the rows of one sealed draw of each family.

    Args:
        folder: keeps the rows of each graph on each cluster.
        families: of `KNOWN` and `NEW`; none for all.
        seconds: processor seconds of `refine`.
    """
    graphs = sealed_graphs(families or (*KNOWN, *NEW), first_seed=first_seed)
    parts = [(Problem(graph, make()), name) for name, make in CLUSTERS.items() for graph in graphs]
    yield rows_of_parts(folder, ClusterRow, parts, _rows, seconds)


def rows_of_parts(
    folder: Path,
    row: type[Row],
    parts: Sequence[tuple[Problem, str]],
    rows_of: Callable[[Problem, str, float], Iterator[Row]],
    seconds: float,
) -> list[Row]:
    """Makes the rows of graphs on clusters, in processor seconds, after all is compiled.

    Args:
        folder: keeps the rows of each graph on each cluster.
        parts: problems, and the names of their clusters on the page.
        rows_of: makes the rows of a part from its problem, the name and the seconds.
    """
    found: list[Row] = []
    with patch("time.perf_counter", time.process_time):
        list(rows_of(*parts[0], seconds))  # compiles
        for problem, cluster in followed(parts, "graphs on clusters"):
            file = folder / f"{problem.graph.name}, {cluster.replace('/', ' per ')}, {seconds:g} s.csv"
            found += kept_rows(file, row, partial(rows_of, problem, cluster, seconds))
    return found


def _rows(problem: Problem, cluster: str, seconds: float) -> Iterator[ClusterRow]:
    for count in COUNTS:
        case = problem.graph.name, problem.graph.family, cluster, count
        for plain in (True, False):
            pipelined = PipelinedProblem(
                problem, Pipeline("1f1b", count, may_replicate=not plain, may_recompute=not plain)
            )
            for placer in PLAIN if plain else REPLICATE:
                budget = Budget(None, seconds) if placer == REFINE else Budget(EVALUATIONS)
                found = place_pipeline(placer, pipelined, budget)
                step, cuts = found.step, found.cuts
                sizes = len(cuts.first), len(cuts.ranks), sum(cuts.recomputed)
                yield ClusterRow(*case, placer, plain, step.throughput_per_s, step.fits, *sizes, found.cpu_s)
        began, data = time.process_time(), simulate_data_parallel_pipeline(pipelined)
        sizes, took_s = (1, data.n_replicas, 0), time.process_time() - began
        yield ClusterRow(*case, DATA, True, count / data.step_s, data.fits, *sizes, took_s)


Rates = dict[tuple[str, bool], float]
"""Throughputs of one case by placer, and whether plans are plain; NaN where a plan does not fit."""


def _rates(rows: Iterable[ClusterRow]) -> Rates:
    """Collects throughputs; a plain plan counts as one of those with replicas too, but not for `refine`."""
    made = {(row.placer, row.plain): row.throughput_per_s if row.fits else np.nan for row in rows}
    found = dict(made)
    for plain in (False, True):
        found |= {(name, plain): made[name, True] for name in (LAYERS, DATA, ONE)}
        found[BETTER, plain] = np.fmax(made[DATA, True], made[ONE, True])
        programmes = [rate for key, rate in made.items() if key[0] in PROGRAMMES and key[1] >= plain]
        found[PROGRAMME, plain] = np.fmax.reduce(programmes)
    return found


def cluster_tables(file: Path) -> Iterator[str]:
    """Yields throughputs of `refine` over others, what does not fit or is faster, and the seconds."""
    rows = read_rows(file, ClusterRow)
    names = (*CLUSTERS, *(f"M = {count}" for count in COUNTS), "unseen families", "known families", "all")
    groups: dict[str, list[Rates]] = {name: [] for name in names}
    for own in grouped(rows, lambda row: (row.graph, row.cluster, row.microbatches)).values():
        family = f"{'unseen' if own[0].family in NEW else 'known'} families"
        for name in (own[0].cluster, f"M = {own[0].microbatches}", family, "all"):
            groups[name].append(_rates(own))
    yield _table(
        groups,
        {
            f"{kind}{REFINE} / {other}": partial(_ratio, plain, other)
            for plain, kind in KINDS
            for other in (LAYERS, PROGRAMME, BETTER)
        },
    )
    yield _table(
        groups,
        {
            "cases": len,
            **{
                f"{kind}{name} does not fit": partial(_misfits, plain, name)
                for plain, kind in KINDS
                for name in (REFINE, PROGRAMME)
            },
            **{f"{name} does not fit": partial(_misfits, True, name) for name in (LAYERS, DATA, ONE)},
            **{
                f"{name} faster than {kind}{REFINE}": partial(_faster, plain, name)
                for plain, kind in KINDS
                for name in (DATA, ONE)
            },
        },
    )
    took = grouped(rows, lambda row: f"{'plain ' * row.plain}{row.placer}")
    seconds = {name: [row.seconds for row in own] for name, own in took.items()}
    yield _table(
        seconds,
        {"median seconds": lambda own: f"{np.median(own):.3f}", "most": lambda own: f"{max(own):.3f}"},
    )


def _table(groups: Mapping[str, list[Any]], columns: Mapping[str, Callable[[list[Any]], object]]) -> str:
    """Formats a line for each group, with a cell of each column."""
    body = [[name, *(str(cell(own)) for cell in columns.values())] for name, own in groups.items()]
    return markdown_table([["", *columns], *body])


def _ratio(plain: bool, other: str, cases: Sequence[Rates]) -> str:
    """Formats the geometric mean of throughputs of `refine` over another's, and the range."""
    ratios = [each[REFINE, plain] / each[other, plain] for each in cases]
    if np.isnan(ratios).all():
        return ""
    return f"{mean_cell(ratios)} ({np.nanmin(ratios):.3f} to {np.nanmax(ratios):.3f})"


def _misfits(plain: bool, name: str, cases: Sequence[Rates]) -> int:
    return sum(bool(np.isnan(each[name, plain])) for each in cases)


def _faster(plain: bool, name: str, cases: Sequence[Rates]) -> int:
    """Counts cases where another plan fits and is faster than that of `refine`, or that does not fit."""
    return sum(bool(each[name, plain] > np.nan_to_num(each[REFINE, plain])) for each in cases)
