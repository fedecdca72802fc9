"""Fits of links to measured transfers: seconds = alpha + bytes / bandwidth, by robust relative errors.

What alpha consists of is told apart as in LogGP: the host's overhead o (`host_s`), the latency L that
occupies no link (`latency_s`), and the gap g for which each message occupies it, here as a size, g times the
bandwidth (`n_half_bytes`). A link that was timed without the host shows L by its smallest message, which is
little more than a handshake; the rest of its alpha is g. A link that a host timed shows the sum of all three:
it is taken to have L and g of the link that it is alike, and what remains is the host's. A step does not pay
that for each copy, as its host runs ahead, so no cluster takes it.

Sources: Hockney, "The communication challenge for MPP", Parallel Computing 20, 1994 (n_half);
Alexandrov et al., "LogGP", SPAA 1995.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from agent.calibration.links_times import LINK_KINDS, LinkTimes, read_link_times
from agent.calibration.op_tables import MeasuredOpsError
from envs.cluster.links import Link, write_links
from graphs.system.array_types import FloatArray

OUTLIER = 0.05
"""Error from which a row's weight in a fit falls."""
MIN_SIZES = 4


def fit_links(tables: Sequence[LinkTimes]) -> dict[str, Link]:
    """Fits links to the sizes not held out, and judges them on the others.

    Args:
        tables: as `read_link_times` returns them.

    Returns:
        Links by name, with parameters of four digits.

    Raises:
        MeasurementError: a link has too few sizes, or that which it is alike has no times.
    """
    own = {table.name: _fit(table) for table in tables}
    links = {}
    for table in tables:
        fitted = _with_constants_of(own, table.name)
        test = table.held_out
        errors = np.abs(fitted.measured_s(table.n_bytes[test]) / table.seconds[test] - 1)
        median, p90 = (round(float(q), 4) for q in np.quantile(errors, [0.5, 0.9]))
        links[table.name] = replace(fitted, median=median, p90=p90)
    return links


def fit_files(files: Sequence[str], out: Path) -> None:
    """Fits links to files of measured transfers, writes them into one file and prints them.

    Raises:
        MeasurementError: a file cannot be used.
    """
    links = fit_links(read_link_times(files))
    out.parent.mkdir(parents=True, exist_ok=True)
    write_links(out, links)
    for name, link in links.items():
        print(
            f"{name:15} {link.bytes_per_s / 1e9:6.1f} GB/s, latency {link.latency_s * 1e6:5.1f} us, "
            f"n_half {link.n_half_bytes / 1e3:6.0f} kB, host {link.host_s * 1e6:4.1f} us; "
            f"{link.rows:3} rows, held out {link.median:5.1%} median, {link.p90:5.1%} p90"
        )


def fit_line(n_bytes: FloatArray, seconds: FloatArray) -> tuple[float, float]:
    """Fits seconds = alpha + n_bytes / bandwidth, both (n,), to the logarithms of the times.

    Returns:
        Alpha in seconds and the bandwidth in bytes a second, of four digits.
    """
    from scipy.optimize import least_squares

    shortest, fastest = float(seconds.min()), float((n_bytes / seconds).max())
    slowest = float((n_bytes / seconds).min())

    def errors(logs: FloatArray) -> FloatArray:
        predicted = np.exp(logs[0]) + n_bytes / np.exp(logs[1])
        misfit: FloatArray = np.log(predicted / seconds)
        return misfit

    low = np.log([shortest * 1e-4, slowest])
    high = np.log([shortest * 10, fastest * 10])
    start = np.log([shortest / 2, fastest])
    found = least_squares(errors, start, bounds=(low, high), loss="soft_l1", f_scale=OUTLIER)
    alpha, bandwidth = np.exp(found.x).tolist()
    return _rounded(alpha), _rounded(bandwidth)


def _fit(table: LinkTimes) -> Link:
    sizes = len(np.unique(table.n_bytes))
    if sizes < MIN_SIZES:
        raise MeasuredOpsError(
            f"{table.name}: was measured at {sizes} sizes; give files of at least {MIN_SIZES}"
        )
    kind, train = LINK_KINDS[table.name], ~table.held_out
    alpha_s, bandwidth = fit_line(table.n_bytes[train], table.seconds[train])
    latency_s = min(alpha_s, float(table.seconds.min()))
    return Link(
        source=kind.source,
        alike=kind.alike,
        datasheet_bytes_per_s=kind.datasheet_bytes_per_s,
        bytes_per_s=bandwidth,
        latency_s=latency_s,
        n_half_bytes=_rounded((alpha_s - latency_s) * bandwidth),
        host_s=0.0,
        rows=int(train.sum()),
        held_out_rows=int(table.held_out.sum()),
        median=0.0,
        p90=0.0,
    )


def _with_constants_of(own: Mapping[str, Link], name: str) -> Link:
    link = own[name]
    if not link.alike:
        return link
    if link.alike not in own:
        raise MeasuredOpsError(
            f"{name}: takes its latency from '{link.alike}', of which there are no times; give its file too"
        )
    other = own[link.alike]
    gap_s = other.n_half_bytes / other.bytes_per_s
    alpha_s = link.latency_s + link.n_half_bytes / link.bytes_per_s
    return replace(
        link,
        latency_s=other.latency_s,
        n_half_bytes=_rounded(gap_s * link.bytes_per_s),
        host_s=_rounded(max(alpha_s - other.latency_s - gap_s, 0.0)),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.4g}")
