"""Enters submissions in the table of the best known answers: `python -m agent.instances DIR`."""

import sys
from pathlib import Path

from agent.instances.submissions import enter
from graphs.system.command_line import OneLineParser, run_command

parser = OneLineParser(prog="agent.instances", description=__doc__)
parser.add_argument("path", type=Path, help="placement files of instances")
given = parser.parse_args().path
sys.exit(run_command("agent.instances", lambda: print("\n".join(enter(given))) or 0))
