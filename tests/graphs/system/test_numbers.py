"""Numbers that people read have four digits, and never an exponent that a step time could have."""

from __future__ import annotations

import pytest

from graphs.system.numbers import four_digits, in_ms


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.03, "0.03"), (62.104, "62.1"), (999.94, "999.9"), (1016.2, "1,016"), (16_110.0, "16,110")],
)
def test_numbers_have_four_digits_or_no_decimals(value: float, text: str) -> None:
    assert four_digits(value) == text
    assert in_ms(value / 1e3) == f"{text} ms"
