"""The settings of a study: a training function run many times, with its configuration changed each time."""

from __future__ import annotations

from dataclasses import dataclass

from agent.learn.config import ConfigError
from graphs.system.settings import Settings, option

STUDIES = "studies (--context search, ablation or grid)"
"""Heading of the command line's help."""
MOST_SEEDS = 1000


@dataclass(frozen=True)
class StudyConfig(Settings, error=ConfigError):
    """The settings that change from trial to trial, and how trials are run.

    Raises:
        ConfigError: a value of the wrong type or out of range.
    """

    vary: tuple[str, ...] = option(
        (),
        "settings to vary; grid: every combination of FIELD=VALUE,VALUE; search: FIELD=VALUE,VALUE or "
        "FIELD=LEAST:MOST or FIELD=LEAST:MOST:log",
        group=STUDIES,
        metavar="FIELD=...",
    )
    without: tuple[str, ...] = option(
        (),
        "components that an ablation leaves out, one at a time (default: all of the base); A+B leaves "
        "out both; FIELD=VALUE replaces a setting; `list` lists them",
        group=STUDIES,
        metavar="COMPONENT",
    )
    seeds: int = option(
        1, "seeds for every study trial, starting at --seed", group=STUDIES, least=1, most=MOST_SEEDS
    )
    trials: int = option(20, "study trials of a search", group=STUDIES, least=1, most=100_000)
    prune: str = option(
        "median",
        "rule by which a search stops bad study trials",
        group=STUDIES,
        choices=("median", "asha", "never"),
    )
    jobs: int = option(
        1,
        "study trials that run at the same time, each in its own process",
        group=STUDIES,
        least=1,
        most=1024,
    )
    attempts: int = option(
        3, "number of times that a study trial is started if its process dies", group=STUDIES, least=1
    )
