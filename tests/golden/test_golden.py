"""Answers are those of the commit at which the goldens were written: see README.md."""

import pytest

from agent.policy.policy import torch_threads
from tests.golden.make import BY_NAME, agrees, differences


@pytest.mark.parametrize("section", BY_NAME)
def test_answers_are_the_golden_ones(section: str) -> None:
    """Placements are sampled; `python -m tests.golden.make` compares all."""
    sample = {"n_clusters": 2} if section == "placements" else {}
    with torch_threads(1):
        assert differences(section, **sample) == []


def test_answers_that_differ_are_found() -> None:
    one, near, far = (f"{bits} {number.hex()}" for bits, number in (("a", 1.0), ("b", 1 + 1e-9), ("b", 1.1)))
    assert not agrees(one, near, is_same_processor=False)
    for kind in ("~", "~~"):
        assert not agrees(kind + one, kind + near, is_same_processor=True)
        assert agrees(kind + one, kind + near, is_same_processor=False)
        assert not agrees(kind + one, kind + far, is_same_processor=False)
        assert not agrees(kind + one, "", is_same_processor=False)
