"""The tables of the settled question on splits of language models over unequal devices."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np

from agent.lab.rows import RecordedRow, axis, grouped, markdown_table, read_table

ONE, BYTES, SPEED, BEST = "one device", "by bytes", "by speed", "best by layer"
EXPERTS, SEARCH = "experts on host", "refine"
"""Names of the splits in the rows."""

Case = Mapping[str, RecordedRow]
"""Rows of a model on a machine by split, of the splits that fit."""


def inference_splits_tables(file: Path) -> Iterator[str]:
    """Yields the tokens a second of each split, and what the splits lose by machine."""
    rows = grouped(read_table(file), lambda row: (f"{row['model']}, {row['precision']}", row["machine"]))
    cases = {case: {row["split"]: row for row in own if row["fits"]} for case, own in rows.items()}
    models, machines = (axis(names) for names in zip(*cases, strict=True))
    lines = [[model, *(_rates(cases[model, machine]) for machine in machines)] for model in models]
    yield markdown_table([["", *machines], *lines])
    groups = {name: [own for (_, at), own in cases.items() if at == name] for name in machines}
    groups["mixtures with host"] = [own for own in cases.values() if EXPERTS in own]
    groups["all"] = list(cases.values())
    losses = ((ONE, BEST), (BYTES, BEST), (SPEED, BEST), (BEST, SEARCH), (EXPERTS, SEARCH))
    head = ["cases", "fit", *(f"{split} loses to {than}" for split, than in losses), "first token, s"]
    lines = [["", *head]]
    for name, own in groups.items():
        first_s = [case[BEST]["prompt_s"] for case in own if BEST in case]
        lost = [_lost(own, *pair) for pair in losses]
        lines.append([name, str(len(own)), str(len(first_s)), *lost, _range(first_s)])
    yield markdown_table(lines)


def _rates(case: Case) -> str:
    """Formats the tokens a second of four splits; a split that does not fit is a dash."""
    shown = (BYTES, SPEED, BEST, SEARCH)
    rates = [f"{1 / case[split]['token_s']:.3g}" if split in case else "-" for split in shown]
    return " / ".join(rates) if case else "none fits"


def _lost(cases: Sequence[Case], split: str, than: str) -> str:
    """Formats the percentage of tokens a second that a split loses, where both fit."""
    both = [(case[split], case[than]) for case in cases if {split, than} <= case.keys()]
    return _range([100 * (1 - better["token_s"] / row["token_s"]) for row, better in both])


def _range(values: Sequence[float]) -> str:
    """Formats the median and the range of numbers."""
    return f"{np.median(values):.1f} ({min(values):.1f} to {max(values):.1f})" if values else ""
