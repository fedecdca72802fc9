"""Predicted against measured times of transfers between two GPUs, by kind of link."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from agent.calibration.links_times import LinkTimes, read_link_times
from agent.experiments.rows import axis, error_cells
from envs.cluster.links import Link, measured_links
from envs.cluster.presets import LATENCY_S


@dataclass(frozen=True)
class LinkRow:
    """A measured transfer beside what was predicted for it.

    Attributes:
        link: kind of link.
        held_out: whether nothing was fitted to this size.
        predicted_s: by the link that was fitted, with the host's part where the host timed it.
        datasheet_s: by the datasheet's bandwidth and `LATENCY_S`; NaN where no datasheet says it.
        measured_s: what it took.
    """

    link: str
    n_bytes: int
    held_out: bool
    predicted_s: float
    datasheet_s: float
    measured_s: float


def compare_links(files: Iterable[Path]) -> list[LinkRow]:
    """Predicts measured transfers with the links of the package.

    Args:
        files: as `agent.calibration.links_times.read_link_times` takes them.

    Raises:
        MeasurementError: a file cannot be used.
    """
    links = measured_links()
    return [row for table in read_link_times(files) for row in _compare(table, links[table.name])]


def _compare(table: LinkTimes, link: Link) -> list[LinkRow]:
    columns = zip(
        table.n_bytes.astype(np.int64).tolist(),
        table.held_out.tolist(),
        link.measured_s(table.n_bytes).tolist(),
        (LATENCY_S + table.n_bytes / link.datasheet_bytes_per_s).tolist(),
        table.seconds.tolist(),
        strict=True,
    )
    return [LinkRow(table.name, *values) for values in columns]


def links_table(rows: Sequence[LinkRow]) -> list[list[str]]:
    """Cells of a table of errors on the sizes held out: a head and a row per link."""
    head = ["link", "sizes held out", "median error", "90th percentile"]
    body = []
    for link in axis(row.link for row in rows):
        held_out = [row for row in rows if row.link == link and row.held_out]
        measured = [row.measured_s for row in held_out]
        fitted = error_cells([row.predicted_s for row in held_out], measured)
        datasheet = error_cells([row.datasheet_s for row in held_out], measured)
        body.append([link, str(len(held_out)), *fitted, *datasheet])
    return [[*head, "datasheet and 10 us: median", "90th percentile"], *body]
