"""The flags of `evaluate.py`."""

from __future__ import annotations

import argparse
import json
import math
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from agent.evaluation.config import CLUSTERS, GRAPHS, PLACERS, RUN, EvaluationConfig
from graphs.system.command_line import OneLineParser
from graphs.system.settings import add_flags

if TYPE_CHECKING:
    from envs.cluster.cluster import Cluster

NAME = "evaluate.py"
LOCAL, RAY = "local", "ray"
EPILOG = """examples:
  python evaluate.py --families nmt ptb --seeds 5 --out runs/heldout
  python evaluate.py --model my_package.models:make --out runs/mine
  python evaluate.py --families ptb --placements mine.json --out runs/scored
  python evaluate.py --print-cluster 4xv100 > mine.json

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
    from agent.calibration.quick import get_or_measure_cluster

    print(cluster_text(get_or_measure_cluster(name)))
    return 0


def _list_graphs(_: str) -> int:
    from agent.instances.best_known import listing

    print("\n".join(listing()))
    return 0


def _validate(path: str) -> int:
    from agent.instances.submissions import validate

    return validate(Path(path), NAME)


def cluster_text(cluster: Cluster) -> str:
    """The text of a cluster file; each row of a matrix is one line."""
    from envs.cluster.files import cluster_to_json

    text = json.dumps(cluster_to_json(cluster), indent=2)
    return re.sub(r"\[\n[\d\s.,eE+-]+\]", lambda row: f"[{' '.join(row[0][1:-1].split())}]", text)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r}; give a whole number of at least 1")
    return int(text)


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} seconds; give a finite number above 0")
    return seconds


def make_parser() -> argparse.ArgumentParser:
    """Makes the parser of the command line: the settings of an evaluation, and how it is run."""
    parser = OneLineParser(
        prog=NAME,
        usage="evaluate.py --out DIR --families|--graphs|--model ... [flags]",
        description="Compares placements of heuristics, searches, policies and placement files.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    groups = add_flags(parser, EvaluationConfig)
    groups[GRAPHS].add_argument(
        "--list-graphs",
        action=_Answer,
        const=_list_graphs,
        nargs=0,
        help="list the instances of the benchmark and the best known step of each, then exit",
    )
    groups[PLACERS].add_argument(
        "--validate",
        action=_Answer,
        const=_validate,
        metavar="FILE|DIR",
        help="check placements of instances and what they claim, then exit",
    )
    groups[CLUSTERS].add_argument(
        "--print-cluster",
        action=_Answer,
        const=_print_cluster,
        metavar="NAME",
        help="print a preset as a cluster file (JSON), then exit",
    )
    measure = parser.add_argument_group("measuring a --model on the devices of this machine")
    measure.add_argument(
        "--profile",
        action="store_true",
        default=False,
        help="time the ops first, and place the model by these times",
    )
    measure.add_argument(
        "--measured",
        type=_count,
        default=None,
        metavar="K",
        help="measure the K best placements, and one device",
    )
    measure.add_argument(
        "--adapt",
        action="store_true",
        default=False,
        help="with --measured K: correct the costs after each placement, and search the next one with them",
    )
    measure.add_argument(
        "--fidelity",
        type=_count,
        nargs="?",
        const=50,
        default=None,
        metavar="N",
        help="simulate and measure N varied placements, and compare both times (default N: 50)",
    )
    measure.add_argument(
        "--measure-timeout",
        type=_seconds,
        default=120.0,
        metavar="S",
        help="stop measuring a placement after S seconds (default: 120)",
    )
    run = parser.add_argument_group(RUN)
    run.add_argument(
        "--out",
        type=Path,
        required=True,
        metavar="DIR",
        help="a new folder, or that of an evaluation to resume",
    )
    run.add_argument(
        "--export",
        nargs="+",
        default=(),
        metavar="NAME",
        help="also write placements for other runtimes: split-spec, schedule-csv, accelerate, torchtitan, "
        "megatron, deepspeed, vllm, sglang, llama.cpp",
    )
    run.add_argument(
        "--trace",
        action="store_true",
        default=False,
        help="also write a trace (Perfetto) of placements that are not of a --model",
    )
    run.add_argument(
        "--tensorboard",
        action="store_true",
        default=False,
        help="write placed graphs, timelines and final ratios for TensorBoard",
    )
    run.add_argument("--jobs", type=_count, default=1, metavar="N", help="processes (default: 1)")
    run.add_argument(
        "--engine",
        choices=(LOCAL, RAY),
        default=LOCAL,
        help="where the processes run; ray: the Ray cluster of RAY_ADDRESS, or a new one on this machine "
        "(default: local)",
    )
    run.add_argument(
        "--trial-timeout",
        type=_seconds,
        default=None,
        metavar="S",
        help="end a trial after S seconds, try it once more, then count it as failed (default: never)",
    )
    return parser
