"""One GPU that stands for two devices: each has two streams of its own on it."""

from __future__ import annotations

from typing import Any

import torch

from envs.runtime.backends.cuda.streams import Cuda


class TwoOnOne(Cuda):
    """Puts `cuda:0` and `cuda:1` on one GPU."""

    def __init__(self, gpu: str) -> None:
        self._gpu = gpu

    def count(self) -> int:
        return 2

    def device(self, name: str) -> torch.device:
        return torch.device(self._gpu)

    def seed(self, name: str, seed: int) -> None:
        super().seed(self._gpu, seed)

    def stream(self, name: str) -> Any:
        return super().stream(self._gpu)
