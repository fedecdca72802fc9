"""Generators: the problem, the order and the first placement that each episode gets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import numpy as np

from graphs.system.array_types import IntArray
from graphs.system.errors import InputError, checked

if TYPE_CHECKING:
    from envs.problem import Problem

Start: TypeAlias = "Callable[[Problem], IntArray]"
"""Gives the placement that an `improve` episode starts from, int (n_ops,)."""


class MdpError(InputError):
    """Episodes that cannot be: no problems, nothing to place, or a setting or decision that is none."""


def on_fastest_device(problem: Problem) -> IntArray:
    """Puts every op on the device that is fastest alone, even where its memory overflows."""
    return np.full(problem.graph.n_ops, int(np.argmin(problem.single_device_s)), dtype=np.int64)


class Beginning(NamedTuple):
    """The draws of one episode: indices of its problem and order, and the seed of a random order."""

    problem: int
    order: int
    seed: int


class Uniform:
    """Draws the problem and the order of each episode, whatever came before."""

    def draw(self, n_problems: int, n_orders: int, rng: np.random.Generator) -> Beginning:
        """Draws an episode over one of `n_problems` problems in one of `n_orders` orders."""
        problem, order, seed = (int(rng.integers(n)) for n in (n_problems, n_orders, 2**63))
        return Beginning(problem, order, seed)

    def restart(self) -> None:
        """Forgets earlier draws."""


class Rounds(Uniform):
    """Draws problems in rounds: each comes up, in a random sequence, before any comes up again.

    Larger graphs so get more decisions, but no more episodes.

    Args:
        repeats: times in a row that a problem comes up in a round, each time in the same order. Such episodes
            visit the same ops at the same time, so that their decisions can be compared; and fewer graphs
            have to be encoded at a time.
        only: indices of the problems to draw from; all by default. Two environments over the same problems
            number them alike, so that a policy may learn from some problems and be evaluated on the others.
    """

    def __init__(self, *, repeats: int = 1, only: Sequence[int] | None = None) -> None:
        self._repeats, self._only = checked(MdpError, "repeats", repeats, int, least=1), only
        self._round: list[Beginning] = []

    def draw(self, n_problems: int, n_orders: int, rng: np.random.Generator) -> Beginning:
        """Draws an episode over the next problem of the round."""
        if not self._round:
            problems = np.atleast_1d(range(n_problems) if self._only is None else self._only)
            checked(MdpError, "the number of problems in only", len(problems), int, least=1)
            drawn = problems[rng.permutation(len(problems))].tolist()
            orders, seeds = rng.integers(n_orders, size=len(drawn)), rng.integers(2**63, size=len(drawn))
            beginnings = map(Beginning, drawn, orders.tolist(), seeds.tolist())
            self._round = [beginning for beginning in beginnings for _ in range(self._repeats)]
        return self._round.pop()

    def restart(self) -> None:
        """Begins a new round."""
        self._round = []
