"""Runs an experiment, or prints the tables of its page.

`python -m agent.lab NAME` makes the rows of an experiment and prints their tables.
If it was stopped, run the same command again to resume.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast, get_args, get_type_hints

from agent.lab.pivot import ExperimentError, write_rows
from agent.lab.questions import EXPERIMENTS, RESULTS
from graphs.system.command_line import RESUMABLE, OneLineParser, interruptible, run_command
from graphs.system.registry import load_plugins

COMMAND = "agent.lab"
METAVARS = {int: "N", float: "X", str: "NAME"}
ABSENT = {"budget": "none", "families": "all", "graphs": "all", "seconds": "none"}
"""Meaning of a setting without values."""
FLAGS = {
    "budget": "budgets in evaluations",
    "clusters": "names of clusters",
    "families": "families of graphs",
    "first_seed": "first seed of the draws",
    "granularities": "what one decision places",
    "graphs": "names of instances, or of models that others measured",
    "jobs": "trials at the same time, each on a core of its own",
    "placers": "names of placers; NAME@POLICY for one with another policy",
    "seconds": "budgets in processor seconds",
    "seeds": "seeds of each search, from 0 on",
}
"""Help of each setting of an experiment."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Lists experiments, or runs one; returns 0: done, 1: a part failed or was stopped, 2: wrong input."""
    words = sys.argv[1:] if arguments is None else list(arguments)

    def work() -> int:
        if not words or words[0] in ("-h", "--help"):
            print(listing())
            return 0
        with interruptible():
            name = _checked(words[0])
            options = vars(parser_of(name).parse_args(words[1:]))
            load_plugins(options.pop("plugin"))
            if options.pop("only"):
                print(EXPERIMENTS[name].show(options["out"] or RESULTS))
            else:
                run(name, options)
        return 0

    return run_command(COMMAND, work, interrupted=RESUMABLE)


def listing() -> str:
    """Lists all experiments with their questions, and what the command takes."""
    width = max(map(len, EXPERIMENTS))
    lines = [f"  {name:{width}}  {experiment.question}" for name, experiment in EXPERIMENTS.items()]
    return "\n".join([f"usage: python -m {COMMAND} NAME [--only tables] [flags]", "", __doc__ or "", *lines])


def _checked(name: str) -> str:
    frozen = {path.stem: path for path in RESULTS.glob("*.md") if path.stem not in EXPERIMENTS}
    if name in frozen:
        raise ExperimentError(f"{name}: is settled; {frozen[name]} names the commit that has its code")
    return EXPERIMENTS.check(name)


def parser_of(name: str) -> argparse.ArgumentParser:
    """Makes the parser of an experiment: the flags that all have, and those of its settings."""
    experiment = EXPERIMENTS[name]
    parser = OneLineParser(prog=f"{COMMAND} {name}", description=experiment.question)
    parser.add_argument(
        "--only", choices=("tables",), help="print the tables of rows that exist, run nothing"
    )
    parser.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help=f"takes the rows and all that the run keeps (default: runs/{name}); with --only, holds the rows "
        "(default: those of the page)",
    )
    plugins = "your own files or modules that register placers, orders, ..."
    parser.add_argument("--plugin", nargs="+", default=(), metavar="FILE|MODULE", help=plugins)
    parser.add_argument("--quick", action="store_true", help="run on little, to see that it works")
    kinds = get_type_hints(type(experiment.run))
    for flag, default in vars(experiment.run).items():
        several = isinstance(default, tuple)
        kind = get_args(kinds[flag])[0] if several else kinds[flag]
        shown = " ".join(map(str, default)) or ABSENT[flag] if several else default
        parser.add_argument(
            f"--{flag.replace('_', '-')}",
            type=kind if kind is str else _number(kind),
            nargs="+" if several else None,
            metavar=METAVARS[kind],
            help=f"{FLAGS[flag]} (default: {shown})",
        )
    return parser


def _number(kind: type) -> Callable[[str], float]:
    def read(text: str) -> float:
        value: float = kind(text)
        if not 0 <= value < math.inf:
            raise ValueError(text)
        return value

    read.__name__ = "number"
    return read


def run(name: str, options: Mapping[str, Any]) -> None:
    """Makes the rows of an experiment, writes them, and prints their tables."""
    experiment, is_quick = EXPERIMENTS[name], options["quick"]
    folder = options["out"] or Path("runs") / (f"{name}-quick" if is_quick else name)
    settings = {**vars(experiment.run), **(experiment.quick if is_quick else {})}
    asked = {key: options[key] for key in settings if options[key] is not None}
    settings |= {key: tuple(value) if isinstance(value, list) else value for key, value in asked.items()}
    write_rows(folder / experiment.rows, replace(cast("Any", experiment.run), **settings).rows(folder))
    print(f"{experiment.question}\n\n{experiment.show(folder)}")
    print(f"rows: {folder}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
