"""Numbers as text, for all that people read."""

from __future__ import annotations


def four_digits(value: float) -> str:
    """Formats a number with four significant digits; from 1,000 on, without decimals."""
    return f"{value:,.0f}" if value >= 1000.0 else f"{value:.4g}"


def in_ms(seconds: float) -> str:
    """Formats seconds as milliseconds, with their unit."""
    return f"{four_digits(1e3 * seconds)} ms"
