"""Choosers of neighbourhoods."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from agent.experiments.neighbourhoods.networks import Net, score_rows
from agent.experiments.neighbourhoods.search import LEAST_UNITS, MOST_UNITS, Walk
from agent.experiments.neighbourhoods.sets import KINDS
from graphs.system.array_types import FloatArray

N_SIZES = 3
RATE, EXPLORE, FIRST_TRIES = 0.1, 0.15, 0.5
"""Of the bandit: weight of a new gain, share of rounds with any arm, and with an arm not tried before."""


@dataclass
class AllUnits:
    """Takes all units, as `refine` does."""

    scans: bool = False

    def choose(self, walk: Walk, progress: float, temperature: float) -> None:
        """Finds the features of the units, if a filter needs them."""
        if self.scans:
            walk.draw(np.zeros(0, dtype=np.int64), progress, temperature)

    def told(self, gain: float, seconds: float) -> None:
        """Does nothing."""


@dataclass
class Fixed:
    """Draws sets of one kind, or of any."""

    kind: int | None = None

    def choose(self, walk: Walk, progress: float, temperature: float) -> None:
        """Takes one set."""
        kind = int(walk.rng.integers(len(KINDS))) if self.kind is None else self.kind
        walk.draw(np.array([kind]), progress, temperature)
        walk.take_drawn(0)

    def told(self, gain: float, seconds: float) -> None:
        """Does nothing."""


@dataclass
class Bandit:
    """Draws kinds and sizes by what they gained a second.

    Source: the adaptive weights of Ropke and Pisinger 2006, section 3.4.
    """

    rates: FloatArray = field(default_factory=lambda: np.full(len(KINDS) * N_SIZES, np.nan))
    arm: int = 0

    def choose(self, walk: Walk, progress: float, temperature: float) -> None:
        """Takes a set of the arm that is drawn."""
        rng, unseen = walk.rng, np.flatnonzero(np.isnan(self.rates))
        if len(unseen) and rng.random() < FIRST_TRIES:
            self.arm = int(rng.choice(unseen))
        else:
            known = np.nan_to_num(self.rates)
            p = known / known.sum() if known.sum() else np.full(len(known), 1 / len(known))
            self.arm = int(rng.choice(len(p), p=(1 - EXPLORE) * p + EXPLORE / len(p)))
        kind, size = divmod(self.arm, N_SIZES)
        bounds = np.linspace(np.log(LEAST_UNITS), np.log(MOST_UNITS), N_SIZES + 1)
        n_units = int(np.exp(rng.uniform(bounds[size], bounds[size + 1])))
        walk.draw_sized(np.array([kind]), np.array([n_units]), progress, temperature)
        walk.take_drawn(0)

    def told(self, gain: float, seconds: float) -> None:
        """Adds the gain to the mean of the arm."""
        rate, old = max(gain, 0.0) / max(seconds, 1e-6), self.rates[self.arm]
        self.rates[self.arm] = rate if np.isnan(old) else (1 - RATE) * old + RATE * rate


@dataclass
class Learned:
    """Takes the set that a network expects to gain most a second, with noise, of some that are drawn.

    Attributes:
        noise: scale of the Gumbel noise on scores.
    """

    net: Net
    n: int = 32
    noise: float = 0.5

    def choose(self, walk: Walk, progress: float, temperature: float) -> None:
        """Takes one of `n` sets."""
        x = walk.draw(walk.rng.integers(len(KINDS), size=self.n), progress, temperature)
        y = np.zeros(self.n)
        score_rows(self.net, x, y)
        walk.take_drawn(int(np.argmax(y + self.noise * walk.rng.gumbel(size=self.n))))

    def told(self, gain: float, seconds: float) -> None:
        """Does nothing."""
