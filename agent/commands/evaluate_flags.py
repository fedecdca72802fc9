"""The flags of `evaluate.py`."""

from __future__ import annotations

import argparse
import json
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from agent.calibration.quick import get_or_measure_cluster
from agent.contexts.engine import ENGINES, LOCAL
from agent.evaluation.config import CLUSTERS, GRAPHS, MANY, RUN, EvaluationConfig, EvaluationError
from agent.instances.instance import listing
from envs.cluster.cluster import Cluster
from envs.cluster.files import cluster_to_json
from envs.cluster.kinds import KINDS
from envs.cluster.named import BOXES, GRAMMAR, NAMES, kind_named
from envs.cluster.presets import DEFAULT_CLUSTER, PRESETS
from envs.costs.calibration import backing, calibration_of
from graphs.system.command_line import OneLineParser, as_typed, name_of
from graphs.system.settings import Settings, add_flags, option

NAME, COMMAND = name_of("evaluate.py"), as_typed("evaluate.py")
MEASURE = "measuring a --model on the devices of this machine"
"""Heading of the command line's help."""
EPILOG = f"""examples:
  {COMMAND} --families nmt ptb --seeds 5 --out runs/heldout
  {COMMAND} --model my_package.models:make --out runs/mine
  {COMMAND} --families ptb --placements mine.json --out runs/scored
  {COMMAND} --print-cluster 4xv100-sxm2 > mine.json

DIR gets results.csv, summary.csv, report.html and placements/. Placements of
--model also get tables, a device map for accelerate, a trace, an explanation.
Run the same command again to resume an interrupted evaluation.
"""


class _Answer(argparse.Action):
    """Ends the command with what a function, `const`, returns of the value."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: str | Sequence[object] | None,
        option_string: str | None = None,
    ) -> NoReturn:
        parser.exit(self.const(str(values)))


def _print_cluster(name: str) -> int:
    print(cluster_text(get_or_measure_cluster(name)))
    return 0


def kind_rows() -> list[list[str]]:
    """Lists kinds of GPUs: name, memory for tensors, what op times come from, links, rate between nodes."""
    rows = []
    for name in NAMES:
        kind = KINDS[kind_named(name)]
        box, fit = BOXES[kind.box], calibration_of(kind.name)
        sources = ", ".join(re.findall(r"(\w+), github", fit.source)) if fit else "datasheet"
        memory = f"{kind.device().memory_bytes / 1e9:.3g} GB"
        rows.append([name, memory, f"{backing([kind.name])} ({sources})", box.said, f"@{box.gbps}g"])
    return rows


def _list_clusters(_: str) -> int:
    for name, build in PRESETS.items():
        devices = build().devices
        kinds = Counter(f"{device.kind} of {device.memory_bytes / 1e9:.3g} GB" for device in devices)
        default = "; the default" * (name == DEFAULT_CLUSTER)
        costs = backing(device.kind for device in devices) + default
        print(f"{name}: {', '.join(f'{n} x {kind}' for kind, n in kinds.items())}; {costs}")
    print(f"\nClusters of any size: {GRAMMAR}, e.g. 2x8xa100-sxm4@200g, of these kinds:\n")
    print("\n".join(f"{name}: {'; '.join(words)}" for name, *words in kind_rows()))
    return 0


def _list_graphs(_: str) -> int:
    print("\n".join(listing()))
    return 0


def cluster_text(cluster: Cluster) -> str:
    """The text of a cluster file; each row of a matrix is one line."""
    text = json.dumps(cluster_to_json(cluster), indent=2)
    return re.sub(r"\[\n[\d\s.,eE+-]+\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)


ANSWERS = (
    (GRAPHS, "--list-graphs", None, _list_graphs, "list the instances and the best known step of each"),
    (
        CLUSTERS,
        "--list-clusters",
        None,
        _list_clusters,
        "list presets and kinds of GPUs, and whether they are calibrated",
    ),
    (CLUSTERS, "--print-cluster", "NAME", _print_cluster, "print a preset as a cluster file (JSON)"),
)
"""Flags that end the command with an answer: heading, flag, value, what answers, and help."""


of_run, of_measure = partial(option, group=RUN), partial(option, group=MEASURE)


@dataclass(frozen=True)
class RunFlags(Settings, error=EvaluationError):
    """The way in which an evaluation is run, what it measures and what else it writes.

    Raises:
        EvaluationError: a value of the wrong type or out of range.
    """

    fit: bool = of_run(False, "say whether training the --model fits, in which ways and batches, then exit")
    profile: bool = of_measure(False, "time the ops first, and place the model by these times")
    measured: int | None = of_measure(
        None,
        "measure the K best placements, and that of `single`, if placed",
        least=1,
        most=MANY,
        metavar="K",
    )
    adapt: bool = of_measure(
        False, "with --measured K: correct the costs after each placement, and search the next one with them"
    )
    fidelity: int | None = of_measure(
        None,
        "simulate and measure N varied placements, 50 without N, and compare both times",
        least=1,
        most=MANY,
        without_value=50,
    )
    measure_timeout: float = of_measure(
        120.0, "stop measuring a placement after S seconds", above=0, metavar="S"
    )

    export: tuple[str, ...] = of_run(
        (),
        "also write placements for other runtimes: split-spec, schedule-csv, accelerate, torchtitan, "
        "megatron, deepspeed, vllm, sglang, llama.cpp",
    )
    export_layers: str = of_run("", "lists of layers that servers and megatron count, such as model.layers")
    trace: bool = of_run(False, "also write a trace (Perfetto) of placements that are not of a --model")
    jobs: int = of_run(1, "processes", least=1, most=1024)
    engine: str = of_run(
        LOCAL,
        "where the processes run; ray: the Ray cluster of RAY_ADDRESS, or a new one on this machine",
        choices=ENGINES,
    )
    trial_timeout: float | None = of_run(
        None,
        "end a trial after S seconds, compiling included, try it once more, then count it as failed",
        above=0,
        metavar="S",
        default_text="never",
    )

    @property
    def measures(self) -> bool:
        """Says whether anything is to be timed."""
        return bool(self.profile or self.measured or self.fidelity)


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line: the settings of an evaluation, and how it is run."""
    parser = OneLineParser(
        prog=NAME,
        usage=f"{NAME} --out DIR --families|--graphs|--model ... [flags]",
        description="Compares placements of heuristics, searches, policies and placement files.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    groups = add_flags(parser, EvaluationConfig)
    for group, flag, metavar, answer, text in ANSWERS:
        n_values = None if metavar else 0
        groups[group].add_argument(
            flag, action=_Answer, const=answer, nargs=n_values, metavar=metavar, help=f"{text}, then exit"
        )
    groups |= add_flags(parser, RunFlags)
    groups[RUN].add_argument(
        "--out", type=Path, metavar="DIR", help="a new folder, or that of an evaluation to resume"
    )
    return parser
