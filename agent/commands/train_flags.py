"""The flags of `train_agent.py`."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from agent.contexts import run_folder as runs
from agent.contexts.engine import CODE, EngineConfig, code_flags
from agent.learn.config import EXTENDABLE, MAIN, ConfigError, TrainConfig
from agent.studies.study_config import StudyConfig
from graphs.system.command_line import OneLineParser, as_typed, name_of
from graphs.system.folders import run_folder
from graphs.system.settings import add_flags, field_types

NAME, COMMAND = name_of("train_agent.py"), as_typed("train_agent.py")
STUDIES = ("search", "ablation", "grid")
"""Contexts that run a study."""


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser: one flag per field of `TrainConfig`, and `--config` and `--resume`."""
    parser = OneLineParser(
        prog=NAME,
        usage=f"{NAME} --name NAME --families NAME [NAME ...] [flags]",
        description=f"Trains a placement policy: {COMMAND} --families cifar10 --cluster 4xv100 --name first",
        argument_default=argparse.SUPPRESS,
    )
    main_flags = add_flags(parser, TrainConfig)[MAIN]
    add_flags(parser, StudyConfig)
    add_flags(parser, EngineConfig)
    main_flags.add_argument(
        "--config", metavar="FILE", default=None, help="JSON file of settings; flags override it"
    )
    main_flags.add_argument("--resume", action="store_true", default=False, help="resume a stopped run")
    main_flags.add_argument(
        "--compile",
        action="store_true",
        default=False,
        help="compile the loops that most commands use, then exit",
    )
    return parser


def engine_settings(options: dict[str, Any]) -> EngineConfig:
    """Takes out of a command line what runs trials or workers."""
    settings = {name: options.pop(name) for name in field_types(EngineConfig) if name in options}
    return EngineConfig.from_json(settings, "command line")


def study_settings(options: dict[str, Any]) -> StudyConfig | None:
    """Takes the settings of a study out of a command line; None without a context that runs one.

    Raises:
        ConfigError: settings of a study without such a context.
    """
    settings = {name: options.pop(name) for name in field_types(StudyConfig) if name in options}
    if options.get("context") in STUDIES:
        if options["resume"]:
            raise ConfigError("leave out --resume; to resume a study, run the command that started it again")
        return StudyConfig.from_json(settings, "command line")
    if settings:
        raise ConfigError(
            f"--{next(iter(settings)).replace('_', '-')} is for --context search, ablation or grid"
        )
    return None


def resolve(options: dict[str, Any]) -> tuple[TrainConfig, Path]:
    """Resolves a command line into the configuration and the folder of a run; that of a study may be there.

    Raises:
        InputError: settings that do not fit together, or a run that exists or does not.
    """
    flags = {key: value for key, value in options.items() if key not in ("config", "resume")}
    if not options["resume"]:
        base = None if options["config"] is None else runs.config_from_file(Path(options["config"]))
        if base is not None:
            _check_code_is_named(options["config"], base, flags)
        config = TrainConfig.from_json(flags, "command line", base)
        if config.context not in STUDIES:
            return config, runs.check_is_new(config.name)
        if "context" not in flags:
            raise ConfigError(
                f"context is {config.context} in a file; give --context {config.context} as a flag"
            )
        return config, run_folder(config.name)
    fixed = [key for key in flags if key not in (*EXTENDABLE, *CODE)] + (
        ["config"] if options["config"] is not None else []
    )
    if fixed:
        raise ConfigError(f"--resume uses the settings of the run; leave out --{fixed[0]}")
    started = runs.read_config(options.get("name", ""))
    _check_code_is_named(run_folder(flags["name"]) / runs.CONFIG, started, flags)
    folder, config = run_folder(flags["name"]), TrainConfig.from_json(flags, "command line", started)
    if changed := [key for key in CODE if getattr(config, key) != getattr(started, key)]:
        raise ConfigError(f"--resume uses the settings of the run, which has another --{changed[0]}")
    return replace(config, minutes=_minutes_of_resumed(folder, config.minutes, "minutes" in flags)), folder


def _check_code_is_named(file: Path | str, config: TrainConfig, settings: Mapping[str, Any]) -> None:
    """Checks that code named in a file of settings is named on the command line too, as it will be run."""
    if flags := code_flags(config, [key for key in CODE if key not in settings]):
        raise ConfigError(f"{file}: names code to run; if you trust it, add{flags}")


def _minutes_of_resumed(folder: Path, minutes: float, is_given: bool) -> float:
    """Returns the time limit of a resumed run: the given minutes from now, else its old limit; 0 = none."""
    from agent.learn.checkpoints import CheckpointFolder, restoring

    saved = CheckpointFolder(folder / "checkpoints").latest()
    if saved is None:
        return minutes
    with restoring(saved):
        limit = saved.state["callbacks"]["TimeLimit"]
        if not is_given:
            return float(limit["limit_s"] or 0.0) / 60
        return minutes + float(limit["wall_s"]) / 60 if minutes else 0.0
