"""Prints the tables of a page of results from its rows.

`python -m agent.experiments.tables PAGE` prints what `agent/experiments/results/PAGE.md` shows. It runs no
experiment; the page names the command that makes the rows.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from agent.experiments.tables.page import PAGES, RESULTS
from graphs.system.command_line import OneLineParser, run_command


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; returns 0: done, 2: wrong input."""
    parser = OneLineParser(prog="agent.experiments.tables", description=__doc__)
    parser.add_argument(
        "page", metavar="PAGE", help=", ".join(sorted(path.stem for path in RESULTS.glob("*.md")))
    )
    options = parser.parse_args(arguments)

    def work() -> int:
        print("\n\n".join(PAGES[options.page]()))
        return 0

    return run_command("agent.experiments.tables", work)


if __name__ == "__main__":
    sys.exit(main())
