"""Trains a placement policy: `python train_agent.py --families cifar10 --cluster 4xv100 --name first`."""

from __future__ import annotations

import argparse
import math
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from graphs.system.command_line import OneLineParser, run_command

if TYPE_CHECKING:
    from agent.contexts.local import LocalContext
    from agent.contexts.workers.distributed_config import EngineConfig
    from agent.studies.study_config import StudyConfig
    from agent.training.config import TrainConfig
    from agent.training.inputs import Inputs
    from agent.training.trainer import Result

NAME = "train_agent.py"
CODE = ("model", "plugin")
"""Settings that name code of the user's."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code: 0 done, 1 stopped or failed, 2 wrong input."""
    return run_command(NAME, lambda: _main(arguments))


def _main(arguments: Sequence[str] | None) -> int:
    from agent.contexts.workers.distributed_config import RAY, started_by_torchrun

    # Read when torch is loaded. Threads that spin while they wait starve others.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    options = vars(make_parser().parse_args(arguments))
    engine, study = engine_settings(options), study_settings(options)
    if study is None and (engine.engine == RAY or started_by_torchrun()):
        return _in_workers(options, engine)
    config, folder = resolve(options, is_study=study is not None)
    engine.check_context(config.context)
    if study is not None:
        return _study(config, study, on_ray=engine.engine == RAY)
    _check_context_is_a_flag(config)
    context, inputs = _open(config, folder, resume=options["resume"])
    return _train(config, context, inputs)


def _check_context_is_a_flag(config: TrainConfig) -> None:
    from agent.training.config import ConfigError

    if config.context in ("search", "ablation", "grid"):
        raise ConfigError(f"context is {config.context} in a file; give --context {config.context} as a flag")


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser: one flag per field of `TrainConfig`, and `--config` and `--resume`."""
    from agent.contexts.workers.distributed_config import EngineConfig
    from agent.studies.study_config import StudyConfig
    from agent.training.config import MAIN, TrainConfig
    from graphs.system.settings import add_flags

    parser = OneLineParser(
        prog=NAME,
        usage="train_agent.py --name NAME --families NAME [NAME ...] [flags]",
        description=__doc__,
        argument_default=argparse.SUPPRESS,
    )
    main_flags = add_flags(parser, TrainConfig)[MAIN]
    add_flags(parser, StudyConfig)
    add_flags(parser, EngineConfig)
    main_flags.add_argument(
        "--config", metavar="FILE", default=None, help="JSON file of settings; flags override it"
    )
    main_flags.add_argument("--resume", action="store_true", default=False, help="resume a stopped run")
    return parser


def engine_settings(options: dict[str, Any]) -> EngineConfig:
    """Takes out of a command line what runs trials or workers.

    Raises:
        ConfigError: a wrong value.
    """
    from agent.contexts.workers.distributed_config import EngineConfig
    from graphs.system.settings import field_types

    given = {name: options.pop(name) for name in field_types(EngineConfig) if name in options}
    return EngineConfig.from_json(given, "command line")


def study_settings(options: dict[str, Any]) -> StudyConfig | None:
    """Takes the settings of a study out of a command line; None without a context that runs one.

    Raises:
        ConfigError: a wrong value, or settings of a study without such a context.
    """
    from agent.studies.study_config import StudyConfig
    from agent.training.config import ConfigError
    from graphs.system.settings import field_types

    given = {name: options.pop(name) for name in field_types(StudyConfig) if name in options}
    if options.get("context", "local") not in ("local", "distributed"):
        if options["resume"]:
            raise ConfigError("leave out --resume; to resume a study, run the command that started it again")
        return StudyConfig.from_json(given, "command line")
    if given:
        raise ConfigError(
            f"--{next(iter(given)).replace('_', '-')} is for --context search, ablation or grid"
        )
    return None


def resolve(options: dict[str, Any], *, is_study: bool = False) -> tuple[TrainConfig, Path]:
    """Resolves a command line into the configuration and the folder of a run.

    Args:
        is_study: whether the folder may be there.

    Raises:
        InputError: settings that do not fit together, or a run that exists or does not.
    """
    from agent.training import run_folder as runs
    from agent.training.config import EXTENDABLE, ConfigError, TrainConfig

    given = {key: value for key, value in options.items() if key not in ("config", "resume")}
    if not options["resume"]:
        base = None if options["config"] is None else runs.config_from_file(Path(options["config"]))
        if base is not None:
            check_code_is_named(options["config"], base, given)
        config = TrainConfig.from_json(given, "command line", base)
        return config, runs.run_folder(config.name) if is_study else runs.check_is_new(config.name)
    fixed = [key for key in given if key not in (*EXTENDABLE, *CODE)] + (
        ["config"] if options["config"] is not None else []
    )
    if fixed:
        raise ConfigError(f"--resume uses the settings of the run; leave out --{fixed[0]}")
    started = runs.read_config(options.get("name", ""))
    check_code_is_named(runs.run_folder(given["name"]) / runs.CONFIG, started, given)
    if changed := [
        key for key in CODE if key in given and _words(given[key]) != _words(getattr(started, key))
    ]:
        raise ConfigError(f"--resume uses the settings of the run, which has another --{changed[0]}")
    folder, config = runs.run_folder(given["name"]), TrainConfig.from_json(given, "command line", started)
    return replace(config, minutes=_minutes_of_resumed(folder, config.minutes, "minutes" in given)), folder


def check_code_is_named(file: Path | str, config: TrainConfig, given: Mapping[str, Any]) -> None:
    """Checks that code named in a file of settings is named on the command line too, as it will be run.

    Raises:
        ConfigError: it is not; the message says what would run, and which flag allows it.
    """
    from agent.training.config import ConfigError

    missing = [key for key in CODE if _words(getattr(config, key)) and key not in given]
    if missing:
        flags = " ".join(f"--{key} {shlex.join(_words(getattr(config, key)))}" for key in missing)
        raise ConfigError(f"{file}: names code to run; if you trust it, add {flags}")


def _words(value: Any) -> list[str]:
    """Lists the names in the value of a flag that takes one name or several."""
    return [value] if isinstance(value, str) else list(value or ())


def _minutes_of_resumed(folder: Path, minutes: float, is_given: bool) -> float:
    """Returns the time limit of a resumed run: the given minutes from now, else its old limit; 0 = none."""
    from agent.training.checkpoints import CheckpointFolder, restoring

    saved = CheckpointFolder(folder / "checkpoints").latest()
    if saved is None:
        return minutes
    with restoring(saved):
        if not is_given:
            return float(saved.state["minutes"])
        return minutes + float(saved.state["training"]["wall_s"]) / 60 if minutes else 0.0


def _in_workers(options: dict[str, Any], engine: EngineConfig) -> int:
    from agent.commands.train_workers import train_in_workers

    def resolved() -> tuple[TrainConfig, Path, bool]:
        config, folder = resolve(options)
        engine.check_context(config.context)
        return config, folder, bool(options["resume"])

    return train_in_workers(engine, resolved, _train)


def _study(config: TrainConfig, study: StudyConfig, *, on_ray: bool) -> int:
    from rich.console import Console

    from agent.contexts.workers.ray_cluster import check_ray_is_installed
    from agent.studies.study_runner import run_study
    from agent.studies.study_trials import describe_components

    if study.without == ("list",):
        print(describe_components())
        return 0
    if on_ray:
        check_ray_is_installed()
    return 0 if run_study(config, study, Console(stderr=True), on_ray=on_ray) else 1


def _open(config: TrainConfig, folder: Path, *, resume: bool) -> tuple[LocalContext, Inputs]:
    """Reads all that the settings name. Slow imports wait until the settings are known to be right."""
    from rich.console import Console

    from agent.contexts.local import LocalContext
    from agent.training.inputs import read_inputs

    context = LocalContext(config, folder, resume=resume, console=Console(stderr=True))
    inputs = read_inputs(config, context.graphs, context.runnable)
    if inputs.left_out:
        print(f"left out because no placement is feasible: {', '.join(inputs.left_out)}", file=sys.stderr)
    return context, inputs


def _train(config: TrainConfig, context: LocalContext, inputs: Inputs) -> int:
    from agent.training.trainer import DivergedError, train

    try:
        with context:
            result = train(config, context, inputs)
            context.finish(result)
    except DivergedError as error:
        print(f"{NAME}: {error}", file=sys.stderr)
        return 1
    except OSError as error:
        if context.folder.exists():
            error.add_note(how_to_resume(config))  # said where the disk is full
        raise
    except KeyboardInterrupt:
        print(f"stopped; {how_to_resume(config)}", file=sys.stderr)
        return 1
    if not result.finished:
        print(f"stopped; {how_to_resume(config)}", file=sys.stderr)
        return 1
    print(closing_lines(result, context.folder))
    if not context.has_reported:
        limits = f"--timesteps above {result.timesteps:,}" + " or --minutes" * (config.limit_s < math.inf)
        print(f"nothing was left to train; to go on, resume with {limits}")
    return 0


def closing_lines(result: Result, folder: Path) -> str:
    """Says how good the policy is, what the time did not suffice for, and where the curves are."""
    lines = [
        f"{folder}: {result.best_score:.3f} of one device's step time on graphs not held out",
        f"reached after {result.best_timesteps:,} decisions; trained for {result.wall_s / 60:.1f} minutes",
    ]
    gains = [
        f"{use.replace('_', ' ')} {old:.3f} -> {new:.3f}" for use, (old, new) in result.reinforcement.items()
    ]
    if gains:
        lines.append(f"by reinforcement: {', '.join(gains)}")
    if result.cut_short:
        lines += ["cut short by --minutes:", *(f"  {phase}" for phase in result.cut_short)]
    return "\n".join([*lines, f"curves: tensorboard --logdir {folder}"])


def how_to_resume(config: TrainConfig) -> str:
    """Returns the command that resumes a run."""
    code = "".join(f" --{key} {shlex.join(words)}" for key in CODE if (words := _words(getattr(config, key))))
    if config.context == "distributed":
        return (
            f"resume with train_agent.py --resume --name {config.name}{code}, started as before "
            "(torchrun or Ray)"
        )
    return f"resume with: python train_agent.py --resume --name {config.name}{code}"


if __name__ == "__main__":
    sys.exit(main())
