"""Measurements of an evaluation as lines of text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from agent.evaluation.measured.fidelity import FidelityRow, fidelity_of
from agent.evaluation.measured.session import MeasuredRow
from agent.evaluation.results import name_of
from agent.evaluation.terminal_report import text_table

HEADINGS = ("placer", "simulated ms", "measured ms", "10 % to 90 %")


def measured_lines(rows: Sequence[MeasuredRow]) -> list[str]:
    """Describes measured placements: a table per cluster, the shortest measured step first."""
    lines: list[str] = []
    for cluster, group in groupby(rows, key=lambda row: row.cluster):
        ranked = sorted(group, key=lambda row: (row.measured_s is None, row.measured_s or row.simulated_s))
        table = text_table(HEADINGS, [_cells(row) for row in ranked], width=None, expendable=())
        best = ranked[0]
        lines += ["", f"{best.graph} on {cluster}, measured on this machine ({best.n_steps} steps each)"]
        lines += table.lines
        lines += [f"{row.placer}: {row.failure}" for row in ranked if row.failure]
        single = next((row for row in ranked if row.placer == "single"), None)
        if single and single.measured_s and best.measured_s:
            ratio = best.measured_s / single.measured_s
            lines.append(f"The shortest measured step is {best.placer}'s: {ratio:.3f} of one device's.")
    return lines


def _cells(row: MeasuredRow) -> tuple[str, ...]:
    name = name_of(row.placer, row.order)
    if row.measured_s is None or row.low_s is None or row.high_s is None:
        return name, _ms(row.simulated_s), "cannot run", ""
    return name, _ms(row.simulated_s), _ms(row.measured_s), f"{_ms(row.low_s)} to {_ms(row.high_s)}"


def fidelity_lines(rows: Sequence[FidelityRow]) -> list[str]:
    """Describes how true the simulator was, a paragraph per cluster."""
    lines: list[str] = []
    for cluster, group in groupby(rows, key=lambda row: row.cluster):
        of_cluster = list(group)
        fidelity = fidelity_of(of_cluster)
        lines += ["", f"{of_cluster[0].graph} on {cluster}: simulated against measured"]
        failed = sum(row.measured_s is None for row in of_cluster)
        if failed:
            lines.append(f"{failed} of {len(of_cluster)} placements cannot be run; see fidelity.csv.")
        if fidelity is None:
            lines.append("Too few placements could be run to compare.")
        else:
            lines += [
                f"{fidelity.n_placements} placements: error {fidelity.median_error:.1%} median, "
                f"{fidelity.p90_error:.1%} 90th percentile;",
                f"after one factor for all of them {fidelity.scaled_error:.1%} median",
                f"rank correlation {fidelity.spearman:.3f} (Spearman), {fidelity.kendall:.3f} (Kendall);",
                f"two rounds of measurements have {fidelity.retest:.3f} (Kendall)",
                f"picking the simulator's best costs {fidelity.regret:.1%}",
            ]
    return lines


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.4g}"
