"""Measured figures beside their baselines: as a table, and as JSON with the machine they are from."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from importlib.metadata import version
from itertools import groupby
from pathlib import Path

PACKAGES = ("torch", "torch-geometric", "stable-baselines3", "sb3-contrib", "numba", "numpy")
HEADINGS = ("", "measured", "baseline", "ratio", "limit")
ROOT = Path(__file__).parents[2]


@dataclass(frozen=True)
class Figure:
    """One measurement.

    Attributes:
        group, name: what was measured.
        value: the figure, in `unit`; more is better where that is a rate (`.../s`), else less is.
        unit: of `value`, `baseline` and `limit`.
        baseline: the same work done another way, in the same run.
        against: what that way is.
        limit: what the machine would allow.
    """

    group: str
    name: str
    value: float
    unit: str
    baseline: float
    against: str
    limit: float | None = None

    @property
    def ratio(self) -> float:
        """How many times better than the baseline."""
        return self.value / self.baseline if self.unit.endswith("/s") else self.baseline / self.value


def table(figures: Sequence[Figure]) -> list[str]:
    """Aligned lines, under one heading a group, which says what the group is measured against."""
    rows = [HEADINGS, *(_cells(figure) for figure in figures)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]

    def line(cells: Sequence[str]) -> str:
        name, *numbers = zip(cells, widths, strict=True)
        return "  ".join(
            [f"  {name[0]:{name[1]}}", *(f"{cell:>{width}}" for cell, width in numbers)]
        ).rstrip()

    lines = [line(HEADINGS)]
    for (group, against), members in groupby(figures, key=lambda figure: (figure.group, figure.against)):
        lines += ["", f"{group}; baseline: {against}", *(line(_cells(figure)) for figure in members)]
    return lines


def machine() -> dict[str, str | dict[str, str]]:
    """When, on what and with what a run was made; nothing that names the machine."""
    return {
        "date": date.today().isoformat(),
        "commit": _commit(),
        "machine": f"{os.cpu_count()} cores, {platform.machine().replace('_', '-')}",
        "versions": {"python": platform.python_version(), **{name: version(name) for name in PACKAGES}},
    }


def write(figures: Sequence[Figure], folder: Path) -> Iterator[Path]:
    """Write the table and the JSON, named after date, commit and machine; yields both paths."""
    made = machine()
    stem = "-".join(
        str(made[key]).replace(", ", "-").replace(" ", "-") for key in ("date", "commit", "machine")
    )
    folder.mkdir(parents=True, exist_ok=True)
    head = ", ".join(str(made[key]) for key in ("date", "commit", "machine"))
    rows = [{**asdict(figure), "ratio": figure.ratio} for figure in figures]
    texts = {
        ".txt": "\n".join([head, "", *table(figures)]),
        ".json": json.dumps({**made, "figures": rows}, indent=1),
    }
    for suffix, text in texts.items():
        path = folder / f"{stem}{suffix}"
        path.write_text(f"{text}\n", encoding="utf-8")
        yield path


def _cells(figure: Figure) -> tuple[str, ...]:
    return (
        figure.name,
        f"{_number(figure.value)} {figure.unit}",
        _number(figure.baseline),
        f"{_number(figure.ratio)}x",
        _number(figure.limit) if figure.limit is not None else "",
    )


def _number(value: float) -> str:
    """Three digits, or all before the point."""
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _commit() -> str:
    command = ["git", "describe", "--always", "--exclude=*", "--dirty=-modified"]
    found = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return found.stdout.strip() or "unknown"
