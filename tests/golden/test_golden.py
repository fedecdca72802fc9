"""Answers are those of the commit at which the goldens were written: see README.md."""

import pytest

from agent.policy.threads import torch_threads
from tests.golden.make import BY_NAME, agrees, differences


@pytest.mark.parametrize("section", BY_NAME)
def test_answers_are_the_golden_ones(section: str) -> None:
    with torch_threads(1):
        assert differences(section) == []


def test_answers_that_differ_are_found() -> None:
    one, near, far = "a " + (1.0).hex(), "b " + (1 + 1e-9).hex(), "b " + (1 + 1e-5).hex()
    assert not agrees(one, near, is_same_processor=False)
    assert not agrees(f"~{one}", f"~{near}", is_same_processor=True)
    assert agrees(f"~{one}", f"~{near}", is_same_processor=False)
    assert agrees(f"~~{one}", f"~~{near}", is_same_processor=True)
    assert not agrees(f"~~{one}", f"~~{far}", is_same_processor=True)
    assert not agrees(f"~~{one}", "", is_same_processor=False)
