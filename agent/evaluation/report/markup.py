"""Small pieces of HTML that the sections of the report are made of."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from urllib.parse import quote

from agent.evaluation.report.style import N_SHADES
from agent.evaluation.results import Trial
from agent.evaluation.run import placement_path
from graphs.system.errors import printable

WORST = 1.5
"""Ratio at which a heat map has its darkest shade."""


def text(value: object) -> str:
    """Escapes a value for HTML; what cannot be printed is shown as an escape sequence."""
    return escape(printable(str(value)))


def name_of(placer: str, order: str) -> str:
    """Names a placer, with the order that it visits ops in."""
    return f"{placer} {order}".strip()


def row(cells: Iterable[str]) -> str:
    """Makes a row of cells that are HTML already."""
    return f"<tr>{''.join(cell if cell.startswith('<td') else f'<td>{cell}</td>' for cell in cells)}</tr>\n"


def table(headings: Sequence[str], rows: Iterable[str], kind: str = "sortable", *, tall: bool = False) -> str:
    """Makes a table that scrolls by itself where the window is narrower.

    Args:
        headings: as HTML.
        kind: CSS classes of the table.
        tall: whether it may be long, and scrolls within a limited height.
    """
    head = "".join(f"<th>{heading}</th>" for heading in headings)
    return (
        f'<div class="wide{" tall" if tall else ""}"><table class="{kind}"><thead><tr>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
    )


def chart(svg: str) -> str:
    """Wraps a chart so that it scrolls by itself where the window is too narrow."""
    return f'<div class="wide chart">{svg}</div>'


def heat_cell(ratio: float | None, content: str) -> str:
    """Makes a cell that is darker the more a ratio exceeds 1; None is a cell without a shade."""
    if ratio is None:
        return f'<td class="none">{content}</td>'
    shade = round((N_SHADES - 1) * min(max((ratio - 1.0) / (WORST - 1.0), 0.0), 1.0))
    return f"<td class=h{shade}>{content}</td>"


def placement_link(trial: Trial, content: str) -> str:
    """Links to the placement file of a trial, relative to the report."""
    path = placement_path(Path(), trial).as_posix()
    return f'<a href="{escape(quote(path))}">{content}</a>'
