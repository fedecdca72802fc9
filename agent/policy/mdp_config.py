"""The decision process of a policy: it constructs a placement, or improves one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from envs.placement import CONSTRUCT, FREE_MEMORY, IMPROVE, MASKS, MDPS
from graphs.system.settings import Settings, option

if TYPE_CHECKING:
    from envs.problem import Problem

GROUP = "problems and decision process"
"""Heading of the command line's help."""
setting = partial(option, group=GROUP)

SINGLE, BEST = "single", "best"
"""Starts of `improve`: everything on the device that is fastest alone, and the best that heuristics find."""


@dataclass(frozen=True)
class MdpConfig(Settings):
    """Settings of a decision process, as `EpisodeSettings` and the environments take them.

    `passes` and `start` are for `improve`.

    Raises:
        InputError: a value of the wrong type or out of range.
    """

    mdp: str = setting(CONSTRUCT, "place every op once, or improve a placement", choices=MDPS)
    passes: int = setting(2, "times that `improve` visits every op", least=1, most=100)
    start: str = setting(
        SINGLE, "placer of the first placement of `improve`, without randomness; `best` = the best of them"
    )
    mask: str = setting(
        FREE_MEMORY,
        "allow only devices with enough free memory for an op; `none` allows every device",
        choices=MASKS,
    )
    memory_penalty: float = setting(
        1.0, "weight of the penalty for a placement that is out of memory", least=0.0
    )

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any], where: str = "settings") -> MdpConfig:
        """Reads the fields from the settings of a training, which hold others too.

        Args:
            where: name of the source in messages.

        Raises:
            InputError: a value of the wrong type or out of range.
        """
        names = [item.name for item in fields(cls) if item.name in settings]
        return cls.from_json({name: settings[name] for name in names}, where)

    @property
    def improves(self) -> bool:
        """Says whether a complete placement exists from the start."""
        return self.mdp == IMPROVE

    def evaluations(self, problem: Problem) -> int:
        """Counts the placements that an episode simulates: every other device of a unit, at each visit."""
        if not self.improves:
            return 0
        return self.passes * len(problem.graph.units) * (problem.n_devices - 1)

    def within(self, problem: Problem, evaluations: int | None) -> MdpConfig | None:
        """Makes a copy with as many passes as a budget allows; None if it allows none."""
        one = replace(self, passes=1).evaluations(problem)
        if evaluations is None or one == 0:
            return self
        passes = min(self.passes, max(evaluations, 0) // one)
        return replace(self, passes=passes) if passes else None
