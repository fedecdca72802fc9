"""The report's templates, which hold its HTML, and the tables that they show."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from markupsafe import Markup

from graphs.system.errors import printable

if TYPE_CHECKING:
    from jinja2 import Environment


class Cell(NamedTuple):
    """A cell of a heat map: darker the more its ratio exceeds 1, and linked where `href` is not empty."""

    content: str
    ratio: float | None = None
    href: str = ""


Rows = Sequence[Sequence[str | Cell]]


@dataclass(frozen=True)
class Table:
    """A table; without headings, its note alone.

    Attributes:
        kind: CSS classes; `tall` tables scroll within a limited height.
    """

    headings: Sequence[str] = ()
    rows: Rows = ()
    title: str = ""
    note: str = ""
    kind: str = "sortable"


def render(template: str, **data: object) -> Markup:
    """Renders a template; text is escaped, and what cannot be printed is shown as an escape sequence."""
    return Markup(_environment().get_template(template).render(data))


@cache
def _environment() -> Environment:
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    return Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        autoescape=True,
        finalize=lambda value: value if isinstance(value, Markup) else printable(str(value)),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
