"""The settings of a study: a training function run many times, with its configuration changed each time."""

from __future__ import annotations

from dataclasses import dataclass

from agent.training.config import ConfigError
from graphs.system.settings import Settings, option

STUDIES = "studies (--context search, ablation or grid)"
"""Heading of the command line's help."""


@dataclass(frozen=True)
class StudyConfig(Settings, error=ConfigError):
    """The settings that change from trial to trial, and how trials are run.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    vary: tuple[str, ...] = option(
        (),
        "of a grid, every combination of FIELD=VALUE,VALUE; of a search, FIELD=VALUE,VALUE or "
        "FIELD=LEAST:MOST or FIELD=LEAST:MOST:log",
        group=STUDIES,
        metavar="FIELD=...",
    )
    without: tuple[str, ...] = option(
        (),
        "components that an ablation leaves out, each by itself (default: all that the base has); A+B leaves "
        "out both; FIELD=VALUE replaces a setting; `list` lists them",
        group=STUDIES,
        metavar="COMPONENT",
    )
    pairs: bool = option(False, "leave out every pair of the components too", group=STUDIES)
    seeds: int = option(1, "seeds of every trial, counted from --seed", group=STUDIES, least=1, most=1000)
    trials: int = option(20, "trials of a search", group=STUDIES, least=1, most=100_000)
    prune: str = option(
        "median", "when a search gives a trial up", group=STUDIES, choices=("median", "asha", "never")
    )
    jobs: int = option(1, "trials at a time, each in a process", group=STUDIES, least=1, most=1024)
    attempts: int = option(3, "how often a trial is begun whose process dies", group=STUDIES, least=1)
    cold_control: bool = option(
        False, "train every trial without --init too, on the same seed", group=STUDIES
    )
