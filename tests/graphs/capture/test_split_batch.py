"""A batch is cut into microbatches where its tensors have its size."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from graphs.capture.structures import split_batch


def test_a_batch_is_cut_where_tensors_have_its_size() -> None:
    batch = {
        "ids": torch.arange(12).view(6, 2),
        "mask": torch.ones(2, 2),
        "labels": [torch.arange(6), "text"],
    }
    parts = split_batch(batch, 3)
    assert len(parts) == 3
    assert torch.equal(torch.cat([part["ids"] for part in parts]), batch["ids"])
    assert all(part["mask"] is batch["mask"] and part["labels"][1] == "text" for part in parts)
    assert [part["labels"][0].tolist() for part in parts] == [[0, 1], [2, 3], [4, 5]]
    (first, second) = split_batch(torch.zeros(3, 4), 2, dim=1)
    assert [part[0].shape for part in (first, second)] == [(3, 2), (3, 2)]


TOKENS, POSITIONS, OFFSETS = torch.arange(48).reshape(8, 6), torch.zeros(1, 6), torch.tensor([0, 2, 3, 8])


@pytest.mark.parametrize(
    ("inputs", "settings", "cut"),
    [
        ((POSITIONS, TOKENS), {}, [None, TOKENS[:4]]),
        ((torch.zeros(6), TOKENS, TOKENS), {}, [None, TOKENS[:4], TOKENS[:4]]),
        ((torch.zeros(32), TOKENS), {}, [None, TOKENS[:4]]),  # has fewer dimensions
        ((torch.zeros(7, 9), torch.zeros(5, 9), TOKENS), {}, [None, None, TOKENS[:4]]),  # 2 divides neither
        ({"a": TOKENS[:6], "b": TOKENS[2:]}, {"names": ["b"]}, [None, TOKENS[2:5]]),
        ((torch.zeros(6, 6), TOKENS), {"names": [1]}, [None, TOKENS[:4]]),
        ((torch.zeros(8), torch.zeros(8)), {"names": ["1"]}, [None, torch.zeros(4)]),
        ((TOKENS, torch.tensor([0, 1, 4, 6, 8])), {}, [TOKENS[:4], torch.tensor([0, 1, 4])]),
        ((TOKENS, OFFSETS), {}, [TOKENS[:4], None]),  # a document lies in both microbatches
        ((TOKENS, torch.tensor([0, 5, 4, 6, 8])), {}, [TOKENS[:4], None]),
        ((TOKENS, torch.tensor([0, 4, 8], device="meta")), {}, [TOKENS[:4], None]),
    ],
)
def test_a_batch_is_cut_where_it_is(
    inputs: object, settings: dict[str, object], cut: list[Tensor | None]
) -> None:
    lines: list[str] = []
    found = split_batch(inputs, 2, **settings, notify=lines.append)[0]  # type: ignore[arg-type]
    found, given = (list(each.values()) if isinstance(each, dict) else each for each in (found, inputs))
    for tensor, whole, expected in zip(found, given, cut, strict=True):
        assert tensor is whole if expected is None else tensor.equal(expected)
    uncut = [list(whole.shape) for whole, expected in zip(given, cut, strict=True) if expected is None]
    assert [all(f"{shape}" in line for shape in uncut) for line in lines] == [True] * bool(uncut)
