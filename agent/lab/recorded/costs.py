"""The tables of settled questions on simulated and measured times."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import fields
from itertools import pairwise
from pathlib import Path

import numpy as np

from agent.evaluation.comparison.ratios import geometric_mean
from agent.evaluation.measured.fidelity import Fidelity, FidelityRow, fidelity_of
from agent.lab.rows import (
    RecordedRow,
    grouped,
    markdown_table,
    mean_cell,
    number_cell,
    read_rows,
    read_table,
)

ALL_DEVICES = "all"
"""Stands for all devices together."""
ROOFLINE = ["roofline: median", "90th percentile"]
ERRORS = ["median error", "90th percentile"]


def error_cells(rows: Sequence[RecordedRow], predicted: str) -> list[str]:
    """Formats the median and the 90th percentile of |predicted / measured - 1|; NaN is a dash."""
    errors = np.abs([row[predicted] / row["measured_s"] - 1 for row in rows])
    return ["-" if np.isnan(error) else f"{error:.1%}" for error in np.quantile(errors, [0.5, 0.9])]


def costs_of_ops_tables(errors_in: Path, ranks_in: Path) -> Iterator[str]:
    """Yields simulated against measured ops: of all devices together, the ranks, and of each device."""
    head = ["device", "class", "n", "median", "p90", "left out: median", "p90", "roofline: median", "p90"]
    shares = [f"{by}{name}" for by in ("", "left_out_", "roofline_") for name in ("median", "p90")]
    errors = {
        is_all: [
            [row["device"], row["op_class"], str(row["n"]), *_percent(row[share] for share in shares)]
            for row in read_table(errors_in)
            if (row["device"] == ALL_DEVICES) is is_all
        ]
        for is_all in (True, False)
    }
    ranks = [
        [row["op_class"], str(row["pairs"]), *_percent((row["predicted"], row["roofline"]))]
        for row in read_table(ranks_in)
    ]
    yield markdown_table([head, *errors[True]])
    yield markdown_table([["class", "pairs", "ranked right", "by the roofline"], *ranks])
    yield markdown_table([head, *errors[False]])


def _percent(shares: Iterable[float]) -> list[str]:
    return [f"{share:.1%}" for share in shares]


def costs_of_links_tables(file: Path) -> Iterator[str]:
    """Yields the errors of predicted transfers on the sizes held out: a row per link."""
    table = [["link", "sizes held out", *ERRORS, "datasheet and 10 us: median", "90th percentile"]]
    held_out = (row for row in read_table(file) if row["held_out"])
    for link, own in grouped(held_out, lambda row: row["link"]).items():
        cells = [*error_cells(own, "predicted_s"), *error_cells(own, "datasheet_s")]
        table.append([link, str(len(own)), *cells])
    yield markdown_table(table)


def costs_of_layers_tables(file: Path) -> Iterator[str]:
    """Yields the errors of predicted layers: a row per device and dtype."""
    table = [["device", "dtype", "layers", "median predicted / measured", *ERRORS, *ROOFLINE]]
    for case, own in grouped(read_table(file), lambda row: (row["device"], row["dtype"])).items():
        ratio = np.median([row["predicted_s"] / row["measured_s"] for row in own])
        cells = [*error_cells(own, "predicted_s"), *error_cells(own, "roofline_s")]
        table.append([*case, str(len(own)), f"{ratio:.2f}", *cells])
    yield markdown_table(table)


def costs_of_steps_tables(*files: Path) -> Iterator[str]:
    """Yields simulated against measured steps of one GPU, of each file: a row per device, and one of all."""
    for file in files:
        rows = read_table(file)
        table = [["device", "steps", *ERRORS, "Kendall's tau", *ROOFLINE, "Kendall's tau"]]
        for device, own in {**grouped(rows, lambda row: row["device"]), ALL_DEVICES: rows}.items():
            table.append([device, str(len(own)), *step_cells(own, "predicted_s")])
            table[-1] += step_cells(own, "roofline_s")
        yield markdown_table(table)


def step_cells(rows: Sequence[RecordedRow], predicted: str) -> list[str]:
    """Formats the errors, and Kendall's tau-b of the two rankings; that of one step is a dash."""
    from scipy.stats import kendalltau

    if len(rows) == 1:
        return [*error_cells(rows, predicted), "-"]
    tau = kendalltau([row[predicted] for row in rows], [row["measured_s"] for row in rows]).statistic
    return [*error_cells(rows, predicted), f"{tau:.3f}"]


def calibrated_costs_tables(file: Path) -> Iterator[str]:
    """Yields placements found under old costs over those found under new ones, of graphs where both fit."""
    head = ["clusters", "placer", "graphs", "old / new", "old / single device", "new / single device"]
    body = []
    cases = grouped(read_table(file), lambda row: (row["old_cluster"], row["new_cluster"], row["placer"]))
    for (old, new, placer), own in cases.items():
        fitting = [row for row in own if row["old_fits"] and row["new_fits"]]
        cells = [
            number_cell(geometric_mean(row[slower] / row[faster] for row in fitting), "-")
            for slower, faster in (("old_s", "new_s"), ("old_s", "single_s"), ("new_s", "single_s"))
        ]
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


def measured_placements_tables(file: Path) -> Iterator[str]:
    """Yields simulated against measured steps of placements."""
    found = fidelity_of(read_rows(file, FidelityRow))
    assert found is not None
    shares = ("median_error", "p90_error", "scaled_error", "regret")
    assert {item.name for item in fields(Fidelity)} == set(MEASURES)

    def cell(name: str) -> str:
        value = getattr(found, name)
        if name in shares:
            return f"{value:.1%}"
        return f"{value:.3f}" if isinstance(value, float) else str(value)

    yield markdown_table([["measure", "found"], *([title, cell(name)] for name, title in MEASURES.items())])


OURS = "placewalk"
"""Name of our solver of recomputation in the rows; the others are torch's."""
SHOWN = (0.05, 0.2, 0.5, 0.8)
"""Budgets of saved bytes whose measured steps are shown, as shares of what torch saves by default."""


def recomputation_tables(file: Path) -> Iterator[str]:
    """Yields what each solver makes of the budgets, and the measured steps at some of them."""
    rows = read_table(file)
    ours = {(row["model"], row["share"]): row for row in rows if row["solver"] == OURS}
    head = ["solver", "simulated step", "simulated peak", "measured step", "measured peak"]
    table = [[*head, "over the budget", "by at most", "slower with more budget"]]
    for solver, own in grouped(rows, lambda row: row["solver"]).items():
        below = [row for row in own if row["share"] < 1]
        means = (
            mean_cell(row[name] / ours[row["model"], row["share"]][name] for row in below)
            for name in ("simulated_s", "simulated_peak_bytes", "measured_s", "measured_peak_bytes")
        )
        over = [
            row["saved_bytes"] / (row["share"] * ours[row["model"], 1.0]["saved_bytes"]) - 1 for row in below
        ]
        exceeded = f"{sum(share > 0 for share in over)} of {len(over)}", f"{max(0.0, *over):.1%}"
        table.append([solver, *means, *exceeded, str(_slower_with_more(own))])
    yield markdown_table(table)
    table = [["model", "solver", *(f"{share:.0%}" for share in SHOWN)]]
    for (model, solver), own in grouped(rows, lambda row: (row["model"], row["solver"])).items():
        whole, found = ours[model, 1.0], {row["share"]: row for row in own}
        cells = (
            f"{found[share]['measured_s'] / whole['measured_s']:.3f} "
            f"({found[share]['measured_peak_bytes'] / whole['measured_peak_bytes']:.3f})"
            for share in SHOWN
        )
        table.append([model, solver, *cells])
    yield markdown_table(table)


def _slower_with_more(rows: Sequence[RecordedRow]) -> int:
    """Counts the budgets whose simulated step is longer than that of the next smaller budget."""
    of_models = grouped(rows, lambda row: row["model"]).values()
    pairs = (pair for own in of_models for pair in pairwise(own))
    return sum(more["simulated_s"] > less["simulated_s"] * (1 + 1e-9) for more, less in pairs)
