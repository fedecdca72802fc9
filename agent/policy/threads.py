"""The number of threads that torch uses."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    """Limits torch to `count` threads within the block.

    Scoring a decision takes microseconds: a second thread gains nothing, and on a busy machine each of its
    operations waits for the other processes. Updates divide their work into
    larger parts.
    """
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
