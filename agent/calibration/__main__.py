"""`python -m agent.calibration measure`: fits the models of costs to this machine."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from agent.calibration.this_machine import Effort, measure_machine, measure_processes
from graphs.system.command_line import RESUMABLE, OneLineParser, interruptible, run_command
from graphs.system.progress import progress_bars

NAME = "python -m agent.calibration"


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command line; returns the exit code, 2 where the input is wrong."""
    parser = OneLineParser(prog=NAME, description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    measure = commands.add_parser("measure", help="time ops here and make the cluster 'this'")
    measure.add_argument("--threads", type=_count, default=1, help="threads of the processor (default 1)")
    measure.add_argument(
        "--processes",
        type=_count,
        default=None,
        metavar="N",
        help="make the cluster 'Nxcpu' instead: N processes that share the cores",
    )
    measure.add_argument(
        "--repeats", type=_count, default=5, help="number of times that each op is timed (default 5)"
    )
    return run_command(NAME, lambda: _run(parser.parse_args(arguments)), interrupted=RESUMABLE)


def _run(options: argparse.Namespace) -> int:
    with interruptible():
        measure_here(options.repeats, options.threads, options.processes)
    return 0


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit() and 1 <= int(text) <= 1024):
        raise argparse.ArgumentTypeError(f"{text!r} is no number from 1 to 1024")
    return int(text)


def measure_here(repeats: int, threads: int, n_processes: int | None) -> None:
    """Calibrates this machine, with a progress bar, and prints what it found.

    Args:
        threads: threads of the processor as one device.
        n_processes: number of devices that share the processor; None for one, beside the CUDA devices.

    Raises:
        MeasuredOpsError: the database of times cannot be used, or a time is impossible.
    """
    with progress_bars() as report:
        if n_processes is None:
            cluster, calibrations = measure_machine(Effort(repeats), threads, report)
        else:
            cluster, calibrations = measure_processes(n_processes, Effort(repeats), report)
    for device in {device.kind: device for device in reversed(cluster.devices)}.values():
        print(f"{device.name} ({device.kind}): {device.flops_per_s:.3g} flops/s, ", end="")
        print(f"{device.bytes_per_s:.3g} bytes/s; errors on held-out ops, median and 90th percentile:")
        for op_class, fit in calibrations[device.kind].classes.items():
            print(f"  {op_class:12} {fit.median:6.1%} {fit.p90:6.1%} of {fit.held_out_rows}")
    if cluster.issue_s:
        print(f"host: {1e6 * cluster.issue_s:.3g} us to issue an op")
    print(f"stored; use it with --cluster {cluster.name}")


if __name__ == "__main__":
    sys.exit(main())
