"""A table as plain text that fits a width by leaving columns out, never by cutting a cell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

GAP = "  "
INDENT = "  "
NOTHING = "-"
"""Stands where there is no number."""


@dataclass(frozen=True)
class TextTable:
    """A table of text.

    Attributes:
        lines: the head, a rule and the rows.
        shown: headings of the columns.
        left_out: headings of the columns that did not fit.
    """

    lines: tuple[str, ...]
    shown: tuple[str, ...]
    left_out: tuple[str, ...]


def text_table(
    headings: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None = None,
    expendable: Sequence[str] = (),
) -> TextTable:
    """Align a table: names on the left, numbers on the right of their columns.

    An expendable column without a number is not shown. A table that is too wide loses columns. If it is still
    too wide without all that are expendable, each name gets a line of its own above its numbers.

    Args:
        headings: of the columns; the first column holds names.
        rows: a cell per heading.
        width: characters a line may have; None = any number.
        expendable: headings of the columns that may be left out, the first one first.
    """
    empty = [name for name in expendable if all(row[headings.index(name)] == NOTHING for row in rows)]
    kept = [name for name in headings if name not in empty]
    left_out: list[str] = []
    waiting = [name for name in expendable if name not in empty]
    while width is not None and waiting and _width(headings, rows, kept) > width:
        left_out.append(waiting.pop(0))
        kept.remove(left_out[-1])
    cells = [[row[headings.index(name)] for name in kept] for row in rows]
    fits = width is None or _width(headings, rows, kept) <= width
    lines = (_side_by_side if fits else _stacked)([kept, *cells])
    return TextTable(tuple(lines), tuple(kept), tuple(left_out))


def _width(headings: Sequence[str], rows: Sequence[Sequence[str]], kept: Sequence[str]) -> int:
    columns = [headings.index(name) for name in kept]
    return sum(max(len(row[at]) for row in (headings, *rows)) for at in columns) + len(GAP) * (len(kept) - 1)


def _side_by_side(rows: Sequence[Sequence[str]]) -> list[str]:
    first = max(len(row[0]) for row in rows)
    numbers = _numbers(rows)
    lines = [f"{row[0]:{first}}{GAP}{line}" for row, line in zip(rows, numbers, strict=True)]
    return _with_rule(lines, 1)


def _stacked(rows: Sequence[Sequence[str]]) -> list[str]:
    numbers = _numbers(rows)
    lines = [text for row, line in zip(rows, numbers, strict=True) for text in (row[0], f"{INDENT}{line}")]
    return _with_rule(lines, 2)


def _numbers(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(map(len, column)) for column in zip(*(row[1:] for row in rows), strict=True)]
    return [GAP.join(f"{cell:>{width}}" for cell, width in zip(row[1:], widths, strict=True)) for row in rows]


def _with_rule(lines: Sequence[str], n_head: int) -> list[str]:
    stripped = [line.rstrip() for line in lines]
    return [*stripped[:n_head], "-" * max(map(len, stripped[n_head:])), *stripped[n_head:]]
