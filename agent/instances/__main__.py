"""Enters submissions in the table of the best known answers: `python -m agent.instances DIR`."""

import sys
from pathlib import Path

from agent.instances.submissions import enter
from graphs.system.command_line import OneLineParser, run_command


def main() -> int:
    """Prints a line for each new best; returns the exit code."""
    parser = OneLineParser(prog="agent.instances", description=__doc__)
    parser.add_argument("path", type=Path, help="placement files of instances")
    lines = enter(parser.parse_args().path)
    print("\n".join([*lines, f"entered: {len(lines)}"]))
    return 0


sys.exit(run_command("agent.instances", main))
