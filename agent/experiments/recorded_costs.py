"""The tables of experiments on costs whose rows were measured once; their pages say by which code."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean
from agent.evaluation.measured.fidelity import Fidelity, FidelityRow, fidelity_of
from agent.experiments.rows import error_cells, grouped, markdown_table, number_cell, read_rows

ALL_DEVICES = "all"
"""Stands for all devices together."""


@dataclass(frozen=True)
class OpErrors:
    """Quantiles of |predicted / measured - 1| over the held-out ops of one device kind, or all, and class.

    Attributes:
        median, p90: by the calibration of the kind.
        left_out_median, left_out_p90: by the medians of other kinds, as if nothing had been measured on this
            one; NaN where no other kind has the class.
        roofline_median, roofline_p90: by the roofline model.
    """

    device: str
    op_class: str
    n: int
    median: float
    p90: float
    left_out_median: float
    left_out_p90: float
    roofline_median: float
    roofline_p90: float


@dataclass(frozen=True)
class DeviceOrder:
    """The share of pairs of devices that are ranked as measured, over the held-out shapes of both."""

    op_class: str
    pairs: int
    predicted: float
    roofline: float


def op_tables(errors_in: Path, ranks_in: Path) -> Iterator[str]:
    """Yields simulated against measured ops: of all devices together, the ranks, and of each device."""
    head = ["device", "class", "n", "median", "p90", "left out: median", "p90", "roofline: median", "p90"]
    errors = {
        is_all: [
            [row.device, row.op_class, str(row.n), *_percent(astuple(row)[3:])]
            for row in read_rows(errors_in, OpErrors)
            if (row.device == ALL_DEVICES) is is_all
        ]
        for is_all in (True, False)
    }
    ranks = [
        [row.op_class, str(row.pairs), *_percent((row.predicted, row.roofline))]
        for row in read_rows(ranks_in, DeviceOrder)
    ]
    yield markdown_table([head, *errors[True]])
    yield markdown_table([["class", "pairs", "ranked right", "by the roofline"], *ranks])
    yield markdown_table([head, *errors[False]])


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]


@dataclass(frozen=True)
class LinkRow:
    """A measured transfer beside what was predicted for it.

    Attributes:
        link: kind of link.
        held_out: whether nothing was fitted to this size.
        predicted_s: by the link that was fitted, with the host's part where the host timed it.
        datasheet_s: by the datasheet's bandwidth and a latency of 10 us; NaN where no datasheet says it.
    """

    link: str
    n_bytes: int
    held_out: bool
    predicted_s: float
    datasheet_s: float
    measured_s: float


def link_tables(file: Path) -> Iterator[str]:
    """Yields the errors of predicted transfers on the sizes held out: a row per link."""
    head = ["link", "sizes held out", "median error", "90th percentile"]
    body = []
    held_out = (row for row in read_rows(file, LinkRow) if row.held_out)
    for link, own in grouped(held_out, lambda row: row.link).items():
        measured = [row.measured_s for row in own]
        fitted = error_cells([row.predicted_s for row in own], measured)
        datasheet = error_cells([row.datasheet_s for row in own], measured)
        body.append([link, str(len(own)), *fitted, *datasheet])
    yield markdown_table([[*head, "datasheet and 10 us: median", "90th percentile"], *body])


@dataclass(frozen=True)
class LayerRow:
    """A measured linear layer of a transformer beside what was predicted for it.

    Attributes:
        device: name of the device in the measurements.
        dtype: of the arithmetic.
        name: the layer, and rows, columns and inner size of its product.
        roofline_s: by the peaks of the datasheet alone.
    """

    device: str
    dtype: str
    name: str
    predicted_s: float
    roofline_s: float
    measured_s: float


def layer_tables(file: Path) -> Iterator[str]:
    """Yields the errors of predicted layers: a row per device and dtype."""
    head = ["device", "dtype", "layers", "median predicted / measured", "median error", "90th percentile"]
    body = []
    for case, own in grouped(read_rows(file, LayerRow), lambda row: (row.device, row.dtype)).items():
        measured = [row.measured_s for row in own]
        ratio = np.median([row.predicted_s / row.measured_s for row in own])
        predicted = error_cells([row.predicted_s for row in own], measured)
        roofline = error_cells([row.roofline_s for row in own], measured)
        body.append([*case, str(len(own)), f"{ratio:.2f}", *predicted, *roofline])
    yield markdown_table([[*head, "roofline: median", "90th percentile"], *body])


@dataclass(frozen=True)
class PlacementRow:
    """One graph, placed under the old costs and under the new ones; all seconds are by the new costs.

    Attributes:
        old_cluster, new_cluster: names of the clusters.
        old_s, new_s: step time of the placement that was found under the old and the new costs.
        old_fits, new_fits: whether these placements fit into the memory of the new cluster.
        single_s: step time on the fastest single device, as if its memory sufficed.
    """

    old_cluster: str
    new_cluster: str
    placer: str
    family: str
    graph: str
    old_s: float
    new_s: float
    old_fits: bool
    new_fits: bool
    single_s: float


def placement_tables(file: Path) -> Iterator[str]:
    """Yields placements found under old costs over those found under new ones, of graphs where both fit."""
    head = ["clusters", "placer", "graphs", "old / new", "old / single device", "new / single device"]
    body = []
    cases = grouped(read_rows(file, PlacementRow), lambda row: (row.old_cluster, row.new_cluster, row.placer))
    for (old, new, placer), own in cases.items():
        fitting = [row for row in own if row.old_fits and row.new_fits]
        ratios = (
            geometric_mean(row.old_s / row.new_s for row in fitting),
            geometric_mean(row.old_s / row.single_s for row in fitting),
            geometric_mean(row.new_s / row.single_s for row in fitting),
        )
        cells = [number_cell(ratio, "-") for ratio in ratios]
        body.append([f"{old} to {new}", placer, f"{len(fitting)} of {len(own)}", *cells])
    yield markdown_table([head, *body])


MEASURES = {
    "n_placements": "placements",
    "median_error": "error, median",
    "p90_error": "error, 90th percentile",
    "scaled_error": "error after one factor for all, median",
    "spearman": "rank correlation, Spearman",
    "kendall": "rank correlation, Kendall",
    "retest": "rank correlation of the first and the last round of measurements, Kendall",
    "regret": "regret of the simulator's best",
}
"""Fields of `Fidelity` in the order of the table."""


def measured_tables(file: Path) -> Iterator[str]:
    """Yields simulated against measured steps of placements."""
    found = fidelity_of(read_rows(file, FidelityRow))
    assert found is not None
    shares = ("median_error", "p90_error", "scaled_error", "regret")
    assert {item.name for item in fields(Fidelity)} == set(MEASURES)

    def cell(name: str) -> str:
        value = getattr(found, name)
        return (
            f"{value:.1%}" if name in shares else f"{value:.3f}" if isinstance(value, float) else str(value)
        )

    yield markdown_table([["measure", "found"], *([title, cell(name)] for name, title in MEASURES.items())])
