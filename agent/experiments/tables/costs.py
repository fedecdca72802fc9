"""Tables of the pages that compare simulated with measured times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields

from agent.evaluation.measured.fidelity import Fidelity, FidelityRow, fidelity_of
from agent.experiments.fidelity import links, placements, profiles, steps
from agent.experiments.fidelity.ops import ALL_DEVICES, DeviceOrder, OpErrors, errors_table, orders_table
from agent.experiments.launcher import markdown_table
from agent.experiments.tables.page import page, read_rows


@page
def costs_of_ops() -> Iterator[str]:
    """Prints simulated against measured ops."""
    errors = read_rows("costs_of_ops.csv", OpErrors)
    yield errors_table([row for row in errors if row.device == ALL_DEVICES])
    yield orders_table(read_rows("costs_of_ops_ranks.csv", DeviceOrder))
    yield errors_table([row for row in errors if row.device != ALL_DEVICES])


@page
def costs_of_steps() -> Iterator[str]:
    """Prints simulated against measured steps of one GPU."""
    for file in ("costs_of_steps.csv", "costs_of_steps_held_back.csv"):
        yield markdown_table(steps.steps_table(read_rows(file, steps.StepRow)))


@page
def costs_of_links() -> Iterator[str]:
    """Prints predicted against measured transfers."""
    yield markdown_table(links.links_table(read_rows("costs_of_links.csv.gz", links.LinkRow)))


@page
def costs_of_layers() -> Iterator[str]:
    """Prints predicted against measured layers of transformers."""
    yield markdown_table(profiles.profiles_table(read_rows("costs_of_layers.csv", profiles.ProfileRow)))


@page
def calibrated_costs() -> Iterator[str]:
    """Prints placements found under datasheet costs and under calibrated ones."""
    rows = read_rows("calibrated_costs.csv", placements.PlacementRow)
    yield markdown_table(placements.placements_table(rows))


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


@page
def measured_placements() -> Iterator[str]:
    """Prints simulated against measured steps of placements."""
    found = fidelity_of(read_rows("measured_placements.csv", FidelityRow))
    assert found is not None
    shares = ("median_error", "p90_error", "scaled_error", "regret")
    assert {item.name for item in fields(Fidelity)} == set(MEASURES)

    def cell(name: str) -> str:
        value = getattr(found, name)
        return (
            f"{value:.1%}" if name in shares else f"{value:.3f}" if isinstance(value, float) else str(value)
        )

    yield markdown_table([["measure", "found"], *([title, cell(name)] for name, title in MEASURES.items())])
